// Scores and weighted values of a few query rows against one tile of 32 tokens.
//
// The order of a bf16 tile product (TDPBF16PS), so that few rows and many give the same bits: per 32 inputs an even and an
// odd chain of FMAs from zero, their sum added to the result. (It takes denormals flushed, as every worker has them.)
//
// Pages are fetched ahead into the second-level cache only: their tiles lie at multiples of 4 KiB and would evict each other
// from the first.
#pragma once

namespace KVR_ISA {

// s[r][h] = scores of row r with the tokens of half h. q: R rows of head_dim, `stride` floats apart.
// Few rows take both halves at once, to have chains enough; many rows one after the other, to have registers enough.
template <int R> INL void score_tile(const uint8_t *tile, int head_dim, const float *q, size_t stride, const uint8_t *next,
                                     F (*s)[2]) {
  constexpr int H = R <= 4 ? 2 : 1;
  UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = zero();
  for (int d = 0; d < head_dim; d += 32)
    UNROLL for (int h0 = 0; h0 < 2; h0 += H) {
      const int pairs = head_dim - d < 32 ? (head_dim - d) / 2 : 16;
      const size_t base = (size_t)h0 * head_dim * 32 + (size_t)d * 32;
      F even[R][H], odd[R][H];
      UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < H; h++) even[r][h] = odd[r][h] = zero();
      for (int i = 0; i < pairs; i++)
        UNROLL for (int h = 0; h < H; h++) {
          const size_t at = base + (size_t)h * head_dim * 32 + i * 64;
          const I pair = iload(tile + at);
          const F ke = even_bf16(pair), ko = odd_bf16(pair);
          if (R <= 4 || next != tile) prefetch_l2(next + at);
          UNROLL for (int r = 0; r < R; r++) {
            even[r][h] = fma(ke, set1(q[r * stride + d + 2 * i]), even[r][h]);
            odd[r][h] = fma(ko, set1(q[r * stride + d + 2 * i + 1]), odd[r][h]);
          }
        }
      UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < H; h++)
        s[r][h0 + h] = add(s[r][h0 + h], add(even[r][h], odd[r][h]));
    }
}

// o[r] += p[r] V for C groups of 16 channels. p: R rows of bf16-valued weights, `p_stride` floats apart.
template <int R, int C> INL void value_columns(const uint8_t *tile, const float *p, size_t p_stride, const uint8_t *next, float *o,
                                               size_t o_stride) {
  F even[R][C], odd[R][C];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) even[r][c] = odd[r][c] = zero();
  for (int i = 0; i < 16; i++) {
    UNROLL for (int c = 0; c < C; c++) {
      const I pair = iload(tile + (size_t)c * 1024 + i * 64);
      const F ve = even_bf16(pair), vo = odd_bf16(pair);
      if (R <= 4 || next != tile) prefetch_l2(next + (size_t)c * 1024 + i * 64);
      UNROLL for (int r = 0; r < R; r++) {
        even[r][c] = fma(ve, set1(p[r * p_stride + 2 * i]), even[r][c]);
        odd[r][c] = fma(vo, set1(p[r * p_stride + 2 * i + 1]), odd[r][c]);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) {
    float *to = o + r * o_stride + c * 16;
    store(to, add(load(to), add(even[r][c], odd[r][c])));
  }
}

template <int R> INL void value_tile(const uint8_t *tile, int head_dim, const float *p, size_t p_stride, const uint8_t *next,
                                     float *o, size_t o_stride) {
  constexpr int C = R <= 3 ? 4 : R <= 4 ? 2 : 1;
  int d = 0;
  for (; d + 16 * C <= head_dim; d += 16 * C)
    value_columns<R, C>(tile + (size_t)d * 64, p, p_stride, next + (size_t)d * 64, o + d, o_stride);
  for (; d < head_dim; d += 16) value_columns<R, 1>(tile + (size_t)d * 64, p, p_stride, next + (size_t)d * 64, o + d, o_stride);
}

}  // namespace KVR_ISA
