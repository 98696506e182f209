// The quantised tensor types of GGUF (ggml-common.h describes their blocks), read a group of 32 weights at a time.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>

#include "kernels.h"

namespace kvr {

// A weight is scale * q + minimum. The sixteen-bit values are fp16.
struct Group {
  alignas(16) uint8_t quants[GROUP];  // q; for Q4 plus 8, for 8 bits plus 128
  uint16_t scale, minimum;
  float error;  // of the worst weight, relative to the largest of the group; 0 where that is 0
};

inline float half_to_float(uint16_t h) {  // also where denormals are flushed
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023, bits = (exponent + 112) << 23 | mantissa << 13;
  float magnitude;
  memcpy(&magnitude, &bits, 4);
  if (exponent == 0) magnitude = (float)mantissa * 0x1p-24f;
  if (exponent == 31) magnitude = mantissa ? NAN : INFINITY;
  return h & 0x8000 ? -magnitude : magnitude;
}

// The nearest half, ties to even; beyond the largest infinity.
inline uint16_t float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x7f800000) return (uint16_t)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (bits >= 0x38800000) {
    const uint32_t rebiased = bits - 0x38000000;
    return (uint16_t)(sign | std::min((rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13, 0x7c00u));
  }
  const uint32_t shift = 126 - (bits >> 23), mantissa = (bits & 0x7fffff) | 0x800000;  // a multiple of 2^-24
  if (shift > 24) return (uint16_t)sign;
  const uint32_t below = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  uint32_t rounded = mantissa >> shift;
  rounded += below > half || (below == half && (rounded & 1));
  return (uint16_t)(sign | rounded);
}

inline bool half_is_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

inline uint16_t load_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

// The group's integers, eight to a word, the first in the lowest byte.
struct Words {
  uint64_t w[4];
  void store(Group &to) const { memcpy(to.quants, w, 32); }
};
constexpr uint64_t EACH = 0x0101010101010101;  // a byte, eight times

// Sixteen bytes: the low halves, then the high halves.
inline Words nibbles(const uint8_t *p) {
  uint64_t w[2];
  memcpy(w, p, 16);
  return {{w[0] & 15 * EACH, w[1] & 15 * EACH, w[0] >> 4 & 15 * EACH, w[1] >> 4 & 15 * EACH}};
}
// The low or the high halves of 32 bytes.
inline Words halves(const uint8_t *p, int shift) {
  Words q;
  memcpy(q.w, p, 32);
  for (uint64_t &w : q.w) w = w >> shift & 15 * EACH;
  return q;
}
// Bit i of `bits` in the lowest bit of byte i.
inline uint64_t spread(uint64_t bits) { return ((bits & 127) * 0x0002040810204081 & EACH) | (bits & 128) << 49; }

// Q4_0: fp16 d, 16 bytes; w = d (q - 8).
struct Q4_0 {
  static constexpr int TYPE = 2, VALUES = 32, BYTES = 18;
  static constexpr Kind KIND = Kind::Q4;
  static void read(const uint8_t *block, int, Group &to) {
    nibbles(block + 2).store(to);
    to.scale = load_u16(block);
  }
};

// Q4_1: fp16 d, fp16 m, 16 bytes; w = d q + m.
struct Q4_1 {
  static constexpr int TYPE = 3, VALUES = 32, BYTES = 20;
  static constexpr Kind KIND = Kind::Q4_MIN;
  static void read(const uint8_t *block, int, Group &to) {
    nibbles(block + 4).store(to);
    to.scale = load_u16(block);
    to.minimum = load_u16(block + 2);
  }
};

// The four low bits of 32 weights in 16 bytes, behind their highest in 4.
inline Words five_bits(const uint8_t *p) {
  Words q = nibbles(p + 4);
  for (int i = 0; i < 4; i++) q.w[i] |= spread(p[i]) << 4;
  return q;
}

// Q5_0: fp16 d, 4 bytes, 16 bytes; w = d (q - 16).
struct Q5_0 {
  static constexpr int TYPE = 6, VALUES = 32, BYTES = 22;
  static constexpr Kind KIND = Kind::Q8;
  static void read(const uint8_t *block, int, Group &to) {
    Words q = five_bits(block + 2);
    for (uint64_t &w : q.w) w += (128 - 16) * EACH;
    q.store(to);
    to.scale = load_u16(block);
  }
};

// Q5_1: fp16 d, fp16 m, 4 bytes, 16 bytes; w = d q + m.
struct Q5_1 {
  static constexpr int TYPE = 7, VALUES = 32, BYTES = 24;
  static constexpr Kind KIND = Kind::Q8_MIN;
  static void read(const uint8_t *block, int, Group &to) {
    Words q = five_bits(block + 4);
    for (uint64_t &w : q.w) w += 128 * EACH;
    q.store(to);
    to.scale = load_u16(block);
    to.minimum = load_u16(block + 2);
  }
};

// Q8_0: fp16 d, 32 int8; w = d q.
struct Q8_0 {
  static constexpr int TYPE = 8, VALUES = 32, BYTES = 34;
  static constexpr Kind KIND = Kind::Q8;
  static void read(const uint8_t *block, int, Group &to) {
    Words q;
    memcpy(q.w, block + 2, 32);
    for (uint64_t &w : q.w) w ^= 128 * EACH;
    q.store(to);
    to.scale = load_u16(block);
  }
};

// Q4_K and Q5_K start with fp16 d, fp16 dmin and 12 bytes: six bits of scale and of minimum for each of eight groups.
// Group g: w = (d scale) q - (dmin minimum); the products are exact in fp32, and are rounded to fp16 here.
inline void round_scales(const uint8_t *block, int g, const Words &q, Group &to) {
  const uint8_t *s = block + 4;
  const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
  const int minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
  const float d = half_to_float(load_u16(block)) * (float)scale, m = -(half_to_float(load_u16(block + 2)) * (float)minimum);
  q.store(to);
  to.scale = float_to_half(d);
  to.minimum = float_to_half(m);
  // Weights and errors are linear in q, so the extreme ones are at its smallest and its largest.
  uint8_t low = 255, high = 0;
  for (const uint8_t v : to.quants) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const float scale_error = half_to_float(to.scale) - d, minimum_error = half_to_float(to.minimum) - m;
  const float worst = std::max(fabsf(scale_error * (float)low + minimum_error), fabsf(scale_error * (float)high + minimum_error));
  const float largest = std::max(fabsf(d * (float)low + m), fabsf(d * (float)high + m));
  to.error = largest > 0 ? worst / largest : 0;
}

// Q4_K: scales, 128 bytes: of each 32 the low halves are one group, the high halves the next.
struct Q4_K {
  static constexpr int TYPE = 12, VALUES = 256, BYTES = 144;
  static constexpr Kind KIND = Kind::Q4_MIN;
  static void read(const uint8_t *block, int g, Group &to) { round_scales(block, g, halves(block + 16 + g / 2 * 32, g % 2 * 4), to); }
};

// Q5_K: scales, 32 bytes of which bit g is the highest of group g, 128 bytes as Q4_K's.
struct Q5_K {
  static constexpr int TYPE = 13, VALUES = 256, BYTES = 176;
  static constexpr Kind KIND = Kind::Q8_MIN;
  static void read(const uint8_t *block, int g, Group &to) {
    Words q = halves(block + 48 + g / 2 * 32, g % 2 * 4), highest;
    memcpy(highest.w, block + 16, 32);
    for (int i = 0; i < 4; i++) q.w[i] |= (highest.w[i] >> g & EACH) << 4;
    round_scales(block, g, q, to);
    for (uint8_t &v : to.quants) v |= 128;
  }
};

// Q6_K: 128 bytes of four low bits, 64 of two high bits, 16 int8 scales, fp16 d. Sixteen weights have a scale:
// w = (d scale) (q - 32). Two of them become one group of 8-bit integers: those with the larger scale times a whole number,
// which keeps them as they are, the others rounded.
struct Q6_K {
  static constexpr int TYPE = 14, VALUES = 256, BYTES = 210;
  static constexpr Kind KIND = Kind::Q8;
  static void read(const uint8_t *block, int g, Group &to);
};

}  // namespace kvr
