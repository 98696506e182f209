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

// One group of one block of columns.
struct GroupAt {
  const uint8_t *quants;
  const uint16_t *scales, *minima;
};

template <Kind K> INL GroupAt group_at(const uint8_t *block, int g) {
  constexpr size_t quants = kvr::quant_bytes(K);
  const uint8_t *pair = block + (size_t)(g / 2) * kvr::pair_bytes(K);
  const uint16_t *scales = (const uint16_t *)(pair + 2 * quants) + g % 2 * kvr::COLUMNS;
  return {pair + g % 2 * quants, scales, scales + 2 * kvr::COLUMNS};
}

// Eight bits outrun what the first-level cache can have on its way: they are fetched into the second (a sixth faster from memory).
template <Kind K> INL void prefetch_pair(const uint8_t *pair) {
  for (int line = 0; line < (int)kvr::pair_bytes(K) / 64; line++)
    kvr::eight_bits(K) ? prefetch_l2(pair + 64 * line) : prefetch(pair + 64 * line);
}

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

// R rows of one tile times one block of columns. `ahead`: prefetch distance, 0 where the weights are in cache.
template <Kind K, int R> INL void quantised_rows(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out,
                                                 int row, int rows, int block, size_t ahead) {
  const int groups = weights.inputs / kvr::GROUP;
  const uint8_t *w = weights.data + (size_t)block * weights.block_bytes;
  size_t at = (size_t)(row / kvr::TILE_ROWS) * groups * kvr::TILE_ROWS + row % kvr::TILE_ROWS;  // of group 0, row 0
  F acc[R];
  UNROLL for (int r = 0; r < R; r++) acc[r] = zero();
  for (int pair = 0; pair < groups; pair += 2, w += kvr::pair_bytes(K)) {
    if (ahead) prefetch_pair<K>(w + ahead);
    UNROLL for (int g = 0; g < 2; g++, at += kvr::TILE_ROWS) {
      if (g && pair + 1 == groups) break;
      const GroupAt group = group_at<K>(w, g);
      B v[8];
      load_group(group.quants, !kvr::eight_bits(K), v);
      const F scale = load_f16(group.scales), minimum = kvr::has_minimum(K) ? load_f16(group.minima) : zero();
      UNROLL for (int r = 0; r < R; r++) {
        const int32_t *x4 = (const int32_t *)(a.quants + (at + r) * kvr::GROUP);
        // Two chains, so that a product need not wait for the one before it.
        I s[2] = {K == Kind::Q4_MIN ? izero() : K == Kind::Q4 ? iset1((int32_t)(-8u * (uint32_t)a.sum[at + r])) : dot8_start(a.sum[at + r]),
                  izero()};
        UNROLL for (int j = 0; j < 8; j++) s[j % 2] = kvr::eight_bits(K) ? dot8(s[j % 2], v[j], x4[j]) : dot4(s[j % 2], v[j], x4[j]);
        acc[r] = fma(mul(to_float(iadd(s[0], s[1])), set1(a.scale[at + r])), scale, acc[r]);
        if (kvr::has_minimum(K)) acc[r] = fma(set1(a.scaled_sum[at + r]), minimum, acc[r]);
      }
    }
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
