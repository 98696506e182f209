// Elementary functions over lanes: one polynomial, one order of operations, for every path.
#pragma once

namespace KVR_ISA {

INL Mask odd_lanes() { return iless(izero(), iand(iota(), iset1(1))); }

constexpr float LOG2E = 1.44269504088896340736f;
constexpr float ROUND = 12582912.f;  // 1.5 * 2^23: adding and subtracting it rounds to the nearest integer, ties to even

// Rounds |x| < 2^22 to the nearest integer, ties to even, as int32.
INL I round_int(F x) { return isub(as_int(add(x, set1(ROUND))), as_int(set1(ROUND))); }

// 2^t for t <= 126; exactly 0 below -125. Largest relative error 1.6e-7.
// Coefficients: minimax in relative error over [-0.5, 0.5], the constant fixed at 1.
INL F exp2(F t) {
  F u = max(set1(-126.f), t);  // in this order: what is no number stays none
  F shifted = add(u, set1(ROUND));
  F f = sub(u, sub(shifted, set1(ROUND)));
  F p = set1(0x1.5bba08p-10f);
  p = fma(p, f, set1(0x1.3cea88p-7f));
  p = fma(p, f, set1(0x1.c6b752p-5f));
  p = fma(p, f, set1(0x1.ebf9bcp-3f));
  p = fma(p, f, set1(0x1.62e42ap-1f));
  p = fma(p, f, set1(1.f));
  F scaled = as_float(iadd(as_int(p), shl<23>(as_int(shifted))));
  return zero_where(less(t, set1(-125.f)), scaled);
}

INL F silu(F x) {
  F e = exp2(min(mul(x, set1(-LOG2E)), set1(126.f)));
  return div(x, add(set1(1.f), e));
}

// The tanh form of GELU, x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel, 2016).
INL F gelu_tanh(F x) {
  F inner = mul(x, fma(mul(x, x), set1(0.044715f), set1(1.f)));
  F e = exp2(min(mul(inner, set1(-2.f * 0.7978845608028654f * LOG2E)), set1(126.f)));
  return div(x, add(set1(1.f), e));
}

// fp32 to the 16 bits of bf16, nearest even, in the low half of each lane.
INL I bf16_bits(F x) {
  I u = as_int(x);
  I lsb = iand(shr<16>(u), iset1(1));
  return shr<16>(iadd(u, iadd(lsb, iset1(0x7fff))));
}
// fp32 rounded to bf16, as fp32.
INL F round_bf16(F x) { return as_float(shl<16>(bf16_bits(x))); }

// The two bf16 values of each lane, as fp32.
INL F even_bf16(I pair) { return as_float(shl<16>(pair)); }
INL F odd_bf16(I pair) { return as_float(iand(pair, iset1((int32_t)0xffff0000))); }

}  // namespace KVR_ISA
