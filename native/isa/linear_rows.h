// y = W x for one row to thousands, in one arithmetic.
//
// Quantised weights: the products of a group are summed exactly in int32; then, groups ascending,
//   acc = fma(float(sum) * activation scale, weight scale, acc), and for a minimum acc = fma(scaled activation sum, minimum, acc).
// Dense weights: acc = fma(x[k], w[k], acc), k ascending.
// A row's result depends on that row alone, so one row and a thousand rows give the same bits.
#pragma once

namespace KVR_ISA {

using kvr::Kind;

constexpr size_t PREFETCH_BYTES = 2560;  // how far ahead of their use weights are fetched

template <Kind K> struct Packing;
template <> struct Packing<Kind::Q4_MIN> { static constexpr int quant_bytes = 256; };
template <> struct Packing<Kind::Q4> { static constexpr int quant_bytes = 256; };
template <> struct Packing<Kind::Q8> { static constexpr int quant_bytes = 512; };

INL void load_group(const uint8_t *w, bool four_bits, B *v) {
  if (four_bits) UNROLL for (int j = 0; j < 4; j++) {
    const B packed = load_bytes(w + 64 * j);
    v[2 * j] = low_nibbles(packed);
    v[2 * j + 1] = high_nibbles(packed);
  }
  else UNROLL for (int j = 0; j < 8; j++) v[j] = load_bytes(w + 64 * j);
}

INL void put(const kvr::Output &out, int row, int block, F value) {
  float *y = out.y + (size_t)row * out.stride + (size_t)block * kvr::COLUMNS;
  store(y, out.accumulate ? add(load(y), value) : value);
}

// R rows of one tile (from row r0 of it) times one block of columns. `ahead`: prefetch distance, 0 where weights are in cache.
template <Kind K, int R> INL void quantised_rows(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out,
                                                 int row, int rows, int block, size_t ahead) {
  constexpr bool four = K != Kind::Q8;
  constexpr int quant_bytes = Packing<K>::quant_bytes;
  const int groups = weights.inputs / kvr::GROUP, r0 = row % kvr::TILE_ROWS;
  const uint8_t *w = weights.data + (size_t)block * weights.block_bytes;
  const uint16_t *scales = (const uint16_t *)(w + (size_t)groups * quant_bytes), *minima = scales + (size_t)groups * kvr::COLUMNS;
  const size_t first = (size_t)(row / kvr::TILE_ROWS) * groups * kvr::TILE_ROWS + r0;
  const int8_t *x = a.quants + first * kvr::GROUP;
  const float *sx = a.scale + first, *xs = a.scaled_sum + first;
  const int32_t *sum = a.sum + first;
  F acc[R];
  UNROLL for (int r = 0; r < R; r++) acc[r] = zero();
  for (int g = 0; g < groups; g++) {
    if (ahead) UNROLL for (int j = 0; j < quant_bytes / 64; j++) prefetch(w + ahead + 64 * j);
    B v[8];
    load_group(w, four, v);
    const F scale = load_f16(scales), minimum = K == Kind::Q4_MIN ? load_f16(minima) : zero();
    UNROLL for (int r = 0; r < R; r++) {
      const int32_t *x4 = (const int32_t *)(x + r * kvr::GROUP);
      I s = K == Kind::Q4_MIN ? izero() : K == Kind::Q4 ? iset1(-8 * sum[r]) : dot8_start(sum[r]);
      UNROLL for (int j = 0; j < 8; j++) s = four ? dot4(s, v[j], x4[j]) : dot8(s, v[j], x4[j]);
      acc[r] = fma(mul(to_float(s), set1(sx[r])), scale, acc[r]);
      if (K == Kind::Q4_MIN) acc[r] = fma(set1(xs[r]), minimum, acc[r]);
    }
    w += quant_bytes;
    scales += kvr::COLUMNS;
    minima += kvr::COLUMNS;
    x += kvr::TILE_ROWS * kvr::GROUP;
    sx += kvr::TILE_ROWS;
    xs += kvr::TILE_ROWS;
    sum += kvr::TILE_ROWS;
  }
  UNROLL for (int r = 0; r < R; r++) if (r < rows) put(out, row + r, block, acc[r]);
}

// One tile of rows times one block: as few passes over the weights as the registers allow.
template <Kind K> static void quantised_tile(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out,
                                             int row, int rows, int block, size_t ahead) {
  while (rows > 0) {
    int done;
#define PASS(R) { quantised_rows<K, R>(weights, a, out, row, rows, block, ahead); done = R; }
    if (rows == 1) PASS(1)
    else if (rows == 2 || ROWS == 2) PASS(2)
    else if (rows <= 4 || ROWS == 4) PASS(ROWS < 4 ? ROWS : 4)
    else if (rows <= 8 || ROWS == 8) PASS(ROWS < 8 ? ROWS : 8)
    else if (rows <= 12) PASS(ROWS < 12 ? ROWS : 12)
    else PASS(ROWS)
#undef PASS
    row += done;
    rows -= done;
  }
}

}  // namespace KVR_ISA
