// y = W x where the weights are F16, BF16 or F32: fp32 FMAs, inputs ascending.
#pragma once

namespace KVR_ISA {

template <Kind K> INL F load_dense(const uint8_t *w) {
  return K == Kind::F32 ? load((const float *)w) : K == Kind::F16 ? load_f16((const uint16_t *)w) : load_bf16((const uint16_t *)w);
}

// R rows times C blocks: R * C independent chains hide the latency of the FMA.
template <Kind K, int R, int C> INL void dense_rows(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out,
                                                    int row, int block) {
  constexpr int bytes = kvr::COLUMNS * (K == Kind::F32 ? 4 : 2);
  const uint8_t *w = weights.data + (size_t)block * weights.block_bytes;
  const float *x = a.dense + (size_t)row * weights.inputs;
  F acc[R][C];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) acc[r][c] = zero();
  for (int k = 0; k < weights.inputs; k++) {
    UNROLL for (int c = 0; c < C; c++) {
      const F v = load_dense<K>(w + (size_t)c * weights.block_bytes + (size_t)k * bytes);
      UNROLL for (int r = 0; r < R; r++) acc[r][c] = fma(set1(x[(size_t)r * weights.inputs + k]), v, acc[r][c]);
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) put(out, row + r, block + c, acc[r][c]);
}

template <Kind K> static void dense(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out, int rows,
                                    int block_begin, int block_end) {
  constexpr int R = ROWS < 8 ? ROWS : 8;
  for (int block = block_begin; block < block_end; block += 2) {
    const bool pair = block + 2 <= block_end;
    int row = 0;
    for (; row + R <= rows; row += R)
      pair ? dense_rows<K, R, 2>(weights, a, out, row, block) : dense_rows<K, R, 1>(weights, a, out, row, block);
    for (; row < rows; row++)
      pair ? dense_rows<K, 1, 2>(weights, a, out, row, block) : dense_rows<K, 1, 1>(weights, a, out, row, block);
  }
}

}  // namespace KVR_ISA
