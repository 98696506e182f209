// Rows of an embedding, dequantised from the packed layout.
#pragma once

namespace KVR_ISA {

// Row `id` of quantised weights.
template <Kind K> INL void embed_quantised(const kvr::Weights &w, int id, float scale, float *x) {
  constexpr bool four = !kvr::eight_bits(K), minimum = kvr::has_minimum(K);
  constexpr int offset = K == Kind::Q4 ? 8 : four ? 0 : 128;  // what the stored integers are too large by
  const int groups = w.inputs / kvr::GROUP, column = id % kvr::COLUMNS;
  const uint8_t *block = w.data + (size_t)(id / kvr::COLUMNS) * w.block_bytes;
  for (int g = 0; g < groups; g++) {
    const GroupAt group = group_at<K>(block, g);
    uint8_t q[32];
    for (int j = 0; j < 8; j++)
      for (int b = 0; b < 4; b++) {
        const uint8_t *at = group.quants + column * 4 + b;
        q[4 * j + b] = four ? (j % 2 ? at[64 * (j / 2)] >> 4 : at[64 * (j / 2)] & 15) : at[64 * j];
      }
    float lanes[16];
    store(lanes, load_f16(group.scales));
    const F d = set1(lanes[column]);
    store(lanes, minimum ? load_f16(group.minima) : zero());
    const F m = set1(lanes[column]);
    for (int i = 0; i < 32; i += 16) {
      const F value = to_float(isub(load_u8(q + i), iset1(offset)));
      store(x + g * kvr::GROUP + i, mul(minimum ? fma(value, d, m) : mul(value, d), set1(scale)));
    }
  }
}

static void embed(const kvr::Weights &w, const int32_t *ids, float scale, float *x, size_t stride, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; row++) {
    const int id = ids[row];
    float *to = x + (size_t)row * stride;
    const uint8_t *block = w.data + (size_t)(id / kvr::COLUMNS) * w.block_bytes;
    switch (w.kind) {
      case kvr::Kind::Q4_MIN: embed_quantised<Kind::Q4_MIN>(w, id, scale, to); continue;
      case kvr::Kind::Q4: embed_quantised<Kind::Q4>(w, id, scale, to); continue;
      case kvr::Kind::Q8_MIN: embed_quantised<Kind::Q8_MIN>(w, id, scale, to); continue;
      case kvr::Kind::Q8: embed_quantised<Kind::Q8>(w, id, scale, to); continue;
      default: break;
    }
    const int bytes = kvr::COLUMNS * (w.kind == kvr::Kind::F32 ? 4 : 2);
    for (int k = 0; k < w.inputs; k++) {
      const uint8_t *at = block + (size_t)k * bytes;
      float lanes[16];
      store(lanes, w.kind == kvr::Kind::F32 ? load((const float *)at)
                   : w.kind == kvr::Kind::F16 ? load_f16((const uint16_t *)at) : load_bf16((const uint16_t *)at));
      to[k] = lanes[id % kvr::COLUMNS] * scale;
    }
  }
}

}  // namespace KVR_ISA
