// Rows of a linear's input: normalised or gated, then quantised to int8 in groups of 32.
#pragma once

namespace KVR_ISA {

// 1 / rms(x). The squares are summed in sixteen lanes, then as sum16.
INL float rms_scale(const float *x, float eps, int n) {
  F squares = zero();
  for (int i = 0; i < n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  return 1.f / __builtin_sqrtf(sum16(squares) / (float)n + eps);
}

// y = x * w / rms(x).
INL void rms_norm_row(const float *x, const float *w, float eps, int n, float *y) {
  const F scale = set1(rms_scale(x, eps, n));
  for (int i = 0; i < n; i += 16) store(y + i, mul(mul(load(x + i), scale), load(w + i)));
}

// x += y * w / rms(y), row by row.
static void add_norm(const float *y, size_t y_stride, const float *norm, float eps, int n, float *x, size_t x_stride, int row_begin,
                     int row_end) {
  for (int row = row_begin; row < row_end; row++) {
    const float *from = y + (size_t)row * y_stride;
    float *to = x + (size_t)row * x_stride;
    const F scale = set1(rms_scale(from, eps, n));
    for (int i = 0; i < n; i += 16) store(to + i, add(load(to + i), mul(mul(load(from + i), scale), load(norm + i))));
  }
}

template <class Gate> INL void gated_row(const float *x, int n, float *y, Gate gate) {
  for (int i = 0; i < n; i += 16) store(y + i, mul(gate(load(x + i)), load(x + n + i)));
}

// The scale of a group: max|y| / 127, its mantissa rounded up to 16 bits so that no value leaves [-127, 127] and the
// product with a group sum of up to 23 bits needs one rounding only. Zero where the group is (nearly) zero.
INL void group_scales(F largest, F &scale, F &inverse) {
  F s = mul(largest, set1(1.f / 127.f));
  s = as_float(iand(iadd(as_int(s), iset1(0xff)), iset1(~0xff)));
  const Mask tiny = less(s, set1(1e-30f));
  scale = zero_where(tiny, s);
  inverse = zero_where(tiny, div(set1(1.f), s));
}

// Sixteen groups (fewer at a row's end) at once: their maxima and sums are reduced together.
INL void quantize_groups(const float *y, int groups, int8_t *quants, float *scale, float *scaled_sum, int32_t *sum) {
  F largest[16];
  UNROLL for (int g = 0; g < 16; g++)
    largest[g] = g < groups ? max(abs(load(y + g * 32)), abs(load(y + g * 32 + 16))) : zero();
  F scales, inverses;
  group_scales(reduce_max_each(largest), scales, inverses);
  float inverse[16], s[16], ss[16];
  int32_t total[16];
  store(inverse, inverses);
  I sums[16];
  UNROLL for (int g = 0; g < 16; g++) {
    sums[g] = izero();
    if (g < groups) {
      const F r = set1(inverse[g]);
      const I a = round_int(mul(load(y + g * 32), r)), b = round_int(mul(load(y + g * 32 + 16), r));
      int8_t *q = quants + (size_t)g * kvr::TILE_ROWS * kvr::GROUP;
      store_i8(q, a);
      store_i8(q + 16, b);
      sums[g] = iadd(a, b);
    }
  }
  const I totals = reduce_add_each(sums);
  istore(total, totals);
  store(s, scales);
  store(ss, mul(scales, to_float(totals)));
  for (int g = 0; g < groups; g++) {
    scale[g * kvr::TILE_ROWS] = s[g];
    scaled_sum[g * kvr::TILE_ROWS] = ss[g];
    sum[g * kvr::TILE_ROWS] = total[g];
  }
}

// Rows [row_begin, row_end) of `source` become activations, quantised, dense or both. `scratch`: one row.
static void quantize(const kvr::RowSource &source, kvr::Activations &out, int row_begin, int row_end, bool dense,
                     bool quantised, float *scratch) {
  const int n = out.inputs, groups = n / kvr::GROUP;
  for (int row = row_begin; row < row_end; row++) {
    const float *x = source.x + (size_t)row * source.stride;
    float *y = dense ? out.dense + (size_t)row * n : scratch;
    switch (source.prologue) {
      case kvr::Prologue::RMS_NORM: rms_norm_row(x, source.norm, source.eps, n, y); break;
      case kvr::Prologue::SILU_MUL: gated_row(x, n, y, [](F g) INL_LAMBDA { return silu(g); }); break;
      case kvr::Prologue::GELU_MUL: gated_row(x, n, y, [](F g) INL_LAMBDA { return gelu_tanh(g); }); break;
      case kvr::Prologue::PLAIN:
        for (int i = 0; i < n; i += 16) store(y + i, load(x + i));
    }
    if (!quantised) continue;
    const size_t tile = (size_t)(row / kvr::TILE_ROWS) * groups;
    const int r = row % kvr::TILE_ROWS;
    for (int g = 0; g < groups; g += 16) {
      const size_t at = (tile + g) * kvr::TILE_ROWS + r;
      quantize_groups(y + g * kvr::GROUP, groups - g < 16 ? groups - g : 16, out.quants + at * kvr::GROUP,
                      out.scale + at, out.scaled_sum + at, out.sum + at);
    }
  }
}

}  // namespace KVR_ISA
