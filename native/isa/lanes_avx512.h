// Sixteen lanes of fp32 or int32 in one AVX-512 register. Needs F, BW, DQ, VL and VNNI.
//
// Every lanes_*.h offers the same names with the same bits; the kernels beside it are written once on top of them.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace KVR_ISA {

typedef __m512 F;         // 16 x fp32
typedef __m512i I;        // 16 x int32
typedef __m512i B;        // 64 bytes: 16 columns x 4 inputs
typedef __mmask16 Mask;   // one bit a lane

constexpr int ROWS = 16;       // rows of activations that one pass over a group of weights serves
constexpr int ATTEND_ROWS = 8; // query rows that fit the registers beside a tile of keys

INL F zero() { return _mm512_setzero_ps(); }
INL F set1(float x) { return _mm512_set1_ps(x); }
INL F load(const float *p) { return _mm512_loadu_ps(p); }
INL void store(float *p, F x) { _mm512_storeu_ps(p, x); }
INL F add(F a, F b) { return _mm512_add_ps(a, b); }
INL F sub(F a, F b) { return _mm512_sub_ps(a, b); }
INL F mul(F a, F b) { return _mm512_mul_ps(a, b); }
INL F div(F a, F b) { return _mm512_div_ps(a, b); }
INL F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
INL F max(F a, F b) { return _mm512_max_ps(a, b); }
INL F min(F a, F b) { return _mm512_min_ps(a, b); }
INL F abs(F a) { return _mm512_abs_ps(a); }

INL I izero() { return _mm512_setzero_si512(); }
INL I iset1(int32_t x) { return _mm512_set1_epi32(x); }
INL I iload(const void *p) { return _mm512_loadu_si512(p); }
INL void istore(void *p, I x) { _mm512_storeu_si512(p, x); }
INL I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
INL I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
INL I iand(I a, I b) { return _mm512_and_si512(a, b); }
template <int N> INL I shl(I a) { return _mm512_slli_epi32(a, N); }
template <int N> INL I shr(I a) { return _mm512_srli_epi32(a, N); }
INL F to_float(I a) { return _mm512_cvtepi32_ps(a); }
INL F as_float(I a) { return _mm512_castsi512_ps(a); }
INL I as_int(F a) { return _mm512_castps_si512(a); }
INL I iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

INL Mask greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INL Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INL Mask iless(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
INL bool any(Mask m) { return m != 0; }
INL F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
INL F zero_where(Mask m, F x) { return _mm512_maskz_mov_ps((Mask)~m, x); }

INL F swap_pairs(F x) { return _mm512_permute_ps(x, 0xB1); }  // lanes 1 0 3 2 ...
// Eight values, each in two lanes.
INL F twice(const float *p) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}

INL F load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INL F load_bf16(const uint16_t *p) {
  return as_float(shl<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p))));
}
// Writes the low half of each lane to every second 16-bit place of p; the places between are not touched.
INL void store_even_u16(uint16_t *p, I x) { _mm512_mask_storeu_epi16(p, 0x55555555u, x); }
// Writes the low byte of each lane to every fourth byte of p; the bytes between are not touched.
INL void store_fourth_u8(uint8_t *p, I x) { _mm512_mask_storeu_epi8(p, 0x1111111111111111u, x); }
// Lanes as int8.
INL void store_i8(int8_t *p, I x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x)); }
// Sixteen int8 or uint8 as lanes.
INL I load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }

INL B load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
INL B low_nibbles(B b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
INL B high_nibbles(B b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
// acc + the products of four unsigned weights a lane with the four signed bytes x4, exactly.
INL I dot4(I acc, B w, int32_t x4) { return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x4)); }
INL I dot8(I acc, B w, int32_t x4) { return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x4)); }
// What an 8-bit group sum starts from: its weights are stored plus 128.
INL I dot8_start(int32_t sum) { return _mm512_set1_epi32((int32_t)(-128u * (uint32_t)sum)); }

// Lane i of the result is the reduction of v[i] over its lanes (any order: maxima and integer sums are exact).
template <class Op> INL __m512i reduce_each(const __m512i *v, Op op) {
  __m512i a[8], b[4], c[2];
  UNROLL for (int i = 0; i < 8; i++)
    a[i] = op(_mm512_unpacklo_epi32(v[i], v[i + 8]), _mm512_unpackhi_epi32(v[i], v[i + 8]));
  UNROLL for (int i = 0; i < 4; i++)
    b[i] = op(_mm512_unpacklo_epi32(a[i], a[i + 4]), _mm512_unpackhi_epi32(a[i], a[i + 4]));
  // Each 128-bit part of b[i] now holds partial results of v[i], v[i+4], v[i+8], v[i+12] in that order.
  UNROLL for (int i = 0; i < 2; i++) {
    __m512i lo = _mm512_shuffle_i64x2(b[i], b[i + 2], 0x44), hi = _mm512_shuffle_i64x2(b[i], b[i + 2], 0xEE);
    c[i] = op(lo, hi);  // parts: i i i+2 i+2
  }
  __m512i lo = _mm512_shuffle_i64x2(c[0], c[1], 0x88), hi = _mm512_shuffle_i64x2(c[0], c[1], 0xDD);
  __m512i d = op(lo, hi);  // parts: 0 2 1 3, each lane j of part q: v[q + 4 j]
  const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
  return _mm512_permutexvar_epi32(order, d);
}
INL F reduce_max_each(const F *v) {
  __m512i t[16];
  UNROLL for (int i = 0; i < 16; i++) t[i] = as_int(v[i]);
  return as_float(reduce_each(t, [](__m512i a, __m512i b) INL_LAMBDA { return as_int(max(as_float(a), as_float(b))); }));
}
INL I reduce_add_each(const I *v) {
  return reduce_each(v, [](__m512i a, __m512i b) INL_LAMBDA { return _mm512_add_epi32(a, b); });
}
INL float reduce_max(F v) { return _mm512_reduce_max_ps(v); }
// The fixed tree of sum16: lanes 8 apart, then 4, 2, 1.
INL float sum16(F v) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
// Makes the compiler believe that x changes here, so that a measuring loop stays a loop.
INL void keep(F &x) { __asm__ volatile("" : "+v"(x)); }
INL void keep(I &x) { __asm__ volatile("" : "+v"(x)); }
INL void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INL void prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

}  // namespace KVR_ISA
