// Sixteen lanes in plain C++: what an unknown CPU runs, and the reference of the other paths.
#pragma once
#include <string.h>

#include "common.h"

namespace KVR_ISA {

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct B { uint8_t v[64]; };
struct Mask { bool v[16]; };

constexpr int ROWS = 4;
constexpr int ATTEND_ROWS = 2;

#define LANES for (int i = 0; i < 16; i++)
#define LANEWISE(Out, expression) { Out r; LANES r.v[i] = (expression); return r; }

INL F zero() LANEWISE(F, 0.f)
INL F set1(float x) LANEWISE(F, x)
INL F load(const float *p) LANEWISE(F, p[i])
INL void store(float *p, F x) { LANES p[i] = x.v[i]; }
INL F add(F a, F b) LANEWISE(F, a.v[i] + b.v[i])
INL F sub(F a, F b) LANEWISE(F, a.v[i] - b.v[i])
INL F mul(F a, F b) LANEWISE(F, a.v[i] * b.v[i])
INL F div(F a, F b) LANEWISE(F, a.v[i] / b.v[i])
INL F fma(F a, F b, F c) LANEWISE(F, __builtin_fmaf(a.v[i], b.v[i], c.v[i]))
// As the x86 instructions: the second operand where either is NaN.
INL F max(F a, F b) LANEWISE(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
INL F min(F a, F b) LANEWISE(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
INL F abs(F a) LANEWISE(F, __builtin_fabsf(a.v[i]))

INL I izero() LANEWISE(I, 0)
INL I iset1(int32_t x) LANEWISE(I, x)
INL I iload(const void *p) { I r; memcpy(&r, p, 64); return r; }
INL void istore(void *p, I x) { memcpy(p, &x, 64); }
INL I iadd(I a, I b) LANEWISE(I, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
INL I isub(I a, I b) LANEWISE(I, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]))
INL I iand(I a, I b) LANEWISE(I, a.v[i] & b.v[i])
template <int N> INL I shl(I a) LANEWISE(I, (int32_t)((uint32_t)a.v[i] << N))
template <int N> INL I shr(I a) LANEWISE(I, (int32_t)((uint32_t)a.v[i] >> N))
INL F to_float(I a) LANEWISE(F, (float)a.v[i])
INL F as_float(I a) { F r; memcpy(&r, &a, 64); return r; }
INL I as_int(F a) { I r; memcpy(&r, &a, 64); return r; }
INL I iota() LANEWISE(I, i)

INL Mask greater(F a, F b) LANEWISE(Mask, a.v[i] > b.v[i])
INL Mask less(F a, F b) LANEWISE(Mask, a.v[i] < b.v[i])
INL Mask iless(I a, I b) LANEWISE(Mask, a.v[i] < b.v[i])
INL bool any(Mask m) { bool r = false; LANES r |= m.v[i]; return r; }
INL F select(Mask m, F yes, F no) LANEWISE(F, m.v[i] ? yes.v[i] : no.v[i])
INL F zero_where(Mask m, F x) LANEWISE(F, m.v[i] ? 0.f : x.v[i])

INL F swap_pairs(F x) LANEWISE(F, x.v[i ^ 1])
INL F twice(const float *p) LANEWISE(F, p[i / 2])

// IEEE half to single by arithmetic that is exact for every finite value, subnormal halves included.
INL float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  if (exponent == 0) {
    if (mantissa == 0) bits = sign;
    else {
      int shift = __builtin_clz(mantissa) - 21;  // brings the leading one to bit 10
      bits = sign | (uint32_t)(113 - shift) << 23 | ((mantissa << shift) & 1023) << 13;
    }
  } else if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
  else bits = sign | (exponent + 112) << 23 | mantissa << 13;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
INL F load_f16(const uint16_t *p) LANEWISE(F, half_to_float(p[i]))
INL F load_bf16(const uint16_t *p) { I r; LANES r.v[i] = (int32_t)((uint32_t)p[i] << 16); return as_float(r); }
INL void store_even_u16(uint16_t *p, I x) { LANES p[2 * i] = (uint16_t)x.v[i]; }
INL void store_fourth_u8(uint8_t *p, I x) { LANES p[4 * i] = (uint8_t)x.v[i]; }
INL void store_i8(int8_t *p, I x) { LANES p[i] = (int8_t)x.v[i]; }
INL I load_u8(const uint8_t *p) LANEWISE(I, p[i])

INL B load_bytes(const uint8_t *p) { B r; memcpy(&r, p, 64); return r; }
INL B low_nibbles(B b) { B r; for (int i = 0; i < 64; i++) r.v[i] = b.v[i] & 15; return r; }
INL B high_nibbles(B b) { B r; for (int i = 0; i < 64; i++) r.v[i] = b.v[i] >> 4; return r; }
INL I dot4(I acc, B w, int32_t x4) {
  int8_t x[4];
  memcpy(x, &x4, 4);
  I r;
  LANES r.v[i] = w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3];
  return iadd(acc, r);  // which wraps
}
INL I dot8(I acc, B w, int32_t x4) { return dot4(acc, w, x4); }
INL I dot8_start(int32_t sum) { return iset1((int32_t)(-128u * (uint32_t)sum)); }

INL float reduce_max(F v) { float r = v.v[0]; LANES r = v.v[i] > r ? v.v[i] : r; return r; }
INL F reduce_max_each(const F *v) LANEWISE(F, reduce_max(v[i]))
INL I reduce_add_each(const I *v) {
  I r = izero();
  LANES for (int j = 0; j < 16; j++) r.v[i] = (int32_t)((uint32_t)r.v[i] + (uint32_t)v[i].v[j]);
  return r;
}
INL float sum16(F v) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) v.v[i] = v.v[i] + v.v[i + step];
  return v.v[0];
}
// Makes the compiler believe that x changes here, so that a measuring loop stays a loop.
INL void keep(F &x) { __asm__ volatile("" : "+m"(x)); }
INL void keep(I &x) { __asm__ volatile("" : "+m"(x)); }
INL void prefetch(const void *) {}
INL void prefetch_l2(const void *) {}

#undef LANEWISE
#undef LANES

}  // namespace KVR_ISA
