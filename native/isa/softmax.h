// The running softmax of a row over steps of 64 tokens, and the merge of parts of 512.
//
// The maximum is renewed only where a score exceeds it by more than 8 (in powers of two): a rule of the row alone.
#pragma once

namespace KVR_ISA {

constexpr float LOWEST = -1e30f;     // the maximum before any token
constexpr float MASKED = -4e30f;     // the score of a token that the row must not see: its weight is exactly 0
constexpr float RENEW = 8.f;

// Renews the maximum for 64 scores where it has to be; returns what older sums and values are scaled by.
INL float renew_maximum(const F *x, float &maximum) {
  const F largest = max(max(x[0], x[1]), max(x[2], x[3]));
  if (__builtin_expect(!any(greater(largest, set1(maximum + RENEW))), 1)) return 1.f;
  const float renewed = reduce_max(largest);
  float lanes[16];
  store(lanes, exp2(set1(maximum - renewed)));
  maximum = renewed;
  return lanes[0];
}

// x: 64 scores in, 64 weights out (fp32). Returns their sums by lane.
INL F weigh(F *x, float maximum) {
  const F m = set1(maximum);
  UNROLL for (int i = 0; i < 4; i++) x[i] = exp2(sub(x[i], m));
  return add(add(x[0], x[1]), add(x[2], x[3]));
}

// Hides the tokens before `start` and from `limit` on, both counted from the step's first.
INL void mask_step(F *x, int start, int limit) {
  if (limit < kvr::STEP_TOKENS)
    UNROLL for (int i = 0; i < 4; i++) x[i] = select(iless(iadd(iota(), iset1(16 * i)), iset1(limit)), x[i], set1(MASKED));
  if (start > 0)
    UNROLL for (int i = 0; i < 4; i++) x[i] = select(iless(iadd(iota(), iset1(16 * i)), iset1(start)), set1(MASKED), x[i]);
}

// Adds the next part to a row's `values` (head_dim floats), in ascending order. The first is copied.
INL void merge_part(Merged &total, float *values, bool first, float maximum, float sum, const float *part, int head_dim) {
  if (first) {
    total.maximum = maximum;
    total.sum = sum;
    for (int d = 0; d < head_dim; d += 16) store(values + d, load(part + d));
    return;
  }
  const float m = total.maximum > maximum ? total.maximum : maximum;
  float lanes[16];
  F both = select(iless(iota(), iset1(1)), set1(total.maximum - m), set1(maximum - m));
  store(lanes, exp2(both));
  const float a = lanes[0], b = lanes[1];
  total.maximum = m;
  total.sum = __builtin_fmaf(sum, b, total.sum * a);
  for (int d = 0; d < head_dim; d += 16)
    store(values + d, fma(load(part + d), set1(b), mul(load(values + d), set1(a))));
}

INL void finish_row(const Merged &total, const float *values, int head_dim, float *out) {
  const F inverse = set1(1.f / total.sum);
  for (int d = 0; d < head_dim; d += 16) store(out + d, mul(load(values + d), inverse));
}

}  // namespace KVR_ISA
