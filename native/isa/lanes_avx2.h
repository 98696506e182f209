// Sixteen lanes of fp32 or int32 in two AVX2 registers. Needs AVX2, FMA and F16C; with KVR_VNNI also AVX-VNNI.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace KVR_ISA {

struct F { __m256 a, b; };        // lanes 0-7, 8-15
struct I { __m256i a, b; };
struct B { __m256i a, b; };       // columns 0-7, 8-15, 4 inputs each
struct Mask { __m256 a, b; };     // all bits of a lane, or none

constexpr int ROWS = 4;
constexpr int ATTEND_ROWS = 3;

#define UNARY(Out, name, In, call) INL Out name(In x) { return {call(x.a), call(x.b)}; }
#define BINARY(Out, name, In, call) INL Out name(In x, In y) { return {call(x.a, y.a), call(x.b, y.b)}; }

INL F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INL F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INL F load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INL void store(float *p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
BINARY(F, add, F, _mm256_add_ps)
BINARY(F, sub, F, _mm256_sub_ps)
BINARY(F, mul, F, _mm256_mul_ps)
BINARY(F, div, F, _mm256_div_ps)
BINARY(F, max, F, _mm256_max_ps)
BINARY(F, min, F, _mm256_min_ps)
INL F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INL F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

INL I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INL I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INL I iload(const void *p) { return {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}; }
INL void istore(void *p, I x) {
  _mm256_storeu_si256((__m256i *)p, x.a);
  _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
BINARY(I, iadd, I, _mm256_add_epi32)
BINARY(I, isub, I, _mm256_sub_epi32)
BINARY(I, iand, I, _mm256_and_si256)
template <int N> INL I shl(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> INL I shr(I x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
UNARY(F, to_float, I, _mm256_cvtepi32_ps)
UNARY(F, as_float, I, _mm256_castsi256_ps)
UNARY(I, as_int, F, _mm256_castps_si256)
INL I iota() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }

INL Mask greater(F x, F y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)}; }
INL Mask less(F x, F y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
INL Mask iless(I x, I y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
INL bool any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }
INL F select(Mask m, F yes, F no) { return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)}; }
INL F zero_where(Mask m, F x) { return {_mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b)}; }

INL F swap_pairs(F x) { return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)}; }
INL F twice(const float *p) {
  const __m256 x = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}

INL F load_f16(const uint16_t *p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
INL F load_bf16(const uint16_t *p) {
  return as_float(shl<16>(I{_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1))}));
}
// Writes the low half of each lane to every second 16-bit place of p; the places between are not touched.
INL void store_even_u16(uint16_t *p, I x) {
  int32_t lanes[16];
  istore(lanes, x);
  UNROLL for (int i = 0; i < 16; i++) p[2 * i] = (uint16_t)lanes[i];
}
INL void store_fourth_u8(uint8_t *p, I x) {
  int32_t lanes[16];
  istore(lanes, x);
  UNROLL for (int i = 0; i < 16; i++) p[4 * i] = (uint8_t)lanes[i];
}
INL void store_i8(int8_t *p, I x) {
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
INL I load_u8(const uint8_t *p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))};
}

INL B load_bytes(const uint8_t *p) { return {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}; }
INL B low_nibbles(B x) {
  const __m256i m = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
INL B high_nibbles(B x) {
  const __m256i m = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), m), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), m)};
}
#ifdef KVR_VNNI
INL I dot_bytes(I acc, B w, int32_t x4) {
  const __m256i x = _mm256_set1_epi32(x4);
  return {_mm256_dpbusd_avx_epi32(acc.a, w.a, x), _mm256_dpbusd_avx_epi32(acc.b, w.b, x)};
}
INL I dot4(I acc, B w, int32_t x4) { return dot_bytes(acc, w, x4); }
INL I dot8(I acc, B w, int32_t x4) { return dot_bytes(acc, w, x4); }
INL I dot8_start(int32_t sum) { return iset1((int32_t)(-128u * (uint32_t)sum)); }
#else
// Pairs of products meet in 16 bits: 4-bit weights cannot overflow them (2 * 15 * 127), and 8-bit ones not once their sign has
// moved to the activation (2 * 128 * 127).
INL __m256i quads(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
INL __m256i signed_quads(__m256i acc, __m256i w, __m256i x) {
  const __m256i s = _mm256_xor_si256(w, _mm256_set1_epi8((char)128));
  return quads(acc, _mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
}
INL I dot4(I acc, B w, int32_t x4) {
  const __m256i x = _mm256_set1_epi32(x4);
  return {quads(acc.a, w.a, x), quads(acc.b, w.b, x)};
}
INL I dot8(I acc, B w, int32_t x4) {
  const __m256i x = _mm256_set1_epi32(x4);
  return {signed_quads(acc.a, w.a, x), signed_quads(acc.b, w.b, x)};
}
INL I dot8_start(int32_t) { return izero(); }
#endif

// Transposes 8 x 8 lanes; the kernels only reduce over the result.
INL void transpose8(const __m256i *v, __m256i *out) {
  __m256i a[8], b[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) UNROLL for (int j = 0; j < 2; j++) {
    b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
    b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    out[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}
// Lane i of the result is the reduction of v[i] over its lanes (any order: maxima and integer sums are exact).
template <class Op> INL I reduce_each(const I *v, Op op) {
  __m256i half[2];
  UNROLL for (int h = 0; h < 2; h++) {
    __m256i folded[8], t[8];
    UNROLL for (int i = 0; i < 8; i++) folded[i] = op(v[8 * h + i].a, v[8 * h + i].b);
    transpose8(folded, t);
    half[h] = op(op(op(t[0], t[1]), op(t[2], t[3])), op(op(t[4], t[5]), op(t[6], t[7])));
  }
  return {half[0], half[1]};
}
INL F reduce_max_each(const F *v) {
  I t[16];
  UNROLL for (int i = 0; i < 16; i++) t[i] = as_int(v[i]);
  return as_float(reduce_each(t, [](__m256i x, __m256i y) INL_LAMBDA {
    return _mm256_castps_si256(_mm256_max_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y)));
  }));
}
INL I reduce_add_each(const I *v) {
  return reduce_each(v, [](__m256i x, __m256i y) INL_LAMBDA { return _mm256_add_epi32(x, y); });
}
INL float reduce_max(F v) {
  const __m256 m = _mm256_max_ps(v.a, v.b);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// The fixed tree of sum16: lanes 8 apart, then 4, 2, 1.
INL float sum16(F v) {
  const __m256 a = _mm256_add_ps(v.a, v.b);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
// Makes the compiler believe that x changes here, so that a measuring loop stays a loop.
INL void keep(F &x) { __asm__ volatile("" : "+x"(x.a), "+x"(x.b)); }
INL void keep(I &x) { __asm__ volatile("" : "+x"(x.a), "+x"(x.b)); }
INL void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INL void prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#undef UNARY
#undef BINARY

}  // namespace KVR_ISA
