// The one place where keys and values are written into pages: a row is encoded once, by itself.
//
// A tile of 32 tokens:
//   bf16   keys [2 halves of 16 tokens][head_dim / 2][16 tokens][2 channels], values [head_dim / 16][16 token pairs][16][2 tokens]
//   8 bits keys [2 halves][head_dim / 4][16 tokens][4 channels], values [head_dim / 16][8 token quads][16][4 tokens]: value + 128;
//          then fp32 scales [32]
//   4 bits keys [2 halves][head_dim / 8][16 tokens][4 bytes], byte b of unit u: channels 8u + b (low) and 8u + 4 + b;
//          values [head_dim / 32][8 token quads][16][4 tokens]: channels 32u + c (low) and 32u + 16 + c;
//          then fp16 scales [groups of 64 channels][32], then fp16 minima
// All are the operands of a tile product, and of the vector path's products of four bytes.
#pragma once

namespace KVR_ISA {

using kvr::Codec;
constexpr float FINITE = 3e38f;             // magnitudes below it are numbers
constexpr float SMALLEST_HALF = 0x1p-14f;   // normal

// fp32 to the 16 bits of fp16, nearest even, for magnitudes that are no subnormal halves; infinite where too large.
INL uint16_t half_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude < 0x38800000u) return (uint16_t)sign;
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000u;
  return (uint16_t)(sign | (rounded >= 0x0f800000u ? 0x7c00 : rounded >> 13));
}
INL float half_value(uint16_t h) {  // of what half_bits gives
  const uint32_t magnitude = h & 0x7fff;
  const uint32_t u = (uint32_t)(h & 0x8000) << 16 | (magnitude == 0x7c00 ? 0x7f800000u : magnitude ? (magnitude << 13) + 0x38000000u : 0);
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

// What is not a number counts as 0, and makes the result infinite.
INL F magnitudes(F x) {
  const F a = abs(x);
  return select(less(a, set1(FINITE)), a, set1(__builtin_inff()));
}
INL F numbers(F x) { return select(less(abs(x), set1(FINITE)), x, zero()); }

INL float inverse_of(float scale) { return scale > 0 ? 1.f / scale : 0.f; }

// Rounds x * inverse to integers of at most `most` in magnitude.
INL I scaled_int(F x, float inverse, float most) {
  return round_int(max(min(mul(numbers(x), set1(inverse)), set1(most)), set1(-most)));
}

static void encode_key_bf16(const float *k, int head_dim, int token, uint8_t *tile) {
  uint32_t *to = (uint32_t *)tile + (size_t)(token / 16) * head_dim * 8 + token % 16;
  for (int d = 0; d < head_dim; d += 16) {
    uint32_t pairs[16];  // in the even lanes
    const I bits = bf16_bits(load(k + d));
    istore(pairs, iadd(bits, shl<16>(as_int(swap_pairs(as_float(bits))))));
    UNROLL for (int i = 0; i < 16; i += 2) to[(size_t)(d + i) / 2 * 16] = pairs[i];
  }
}

static void encode_value_bf16(const float *v, int head_dim, int token, uint8_t *tile) {
  for (int d = 0; d < head_dim; d += 16)
    store_even_u16((uint16_t *)tile + (size_t)d * 32 + token / 2 * 32 + token % 2, bf16_bits(load(v + d)));
}

// A row as int8 plus 128, in channel order. Returns its scale.
INL float quantise_8(const float *x, int head_dim, float step, uint8_t *codes) {
  F largest = zero();
  for (int d = 0; d < head_dim; d += 16) largest = max(largest, magnitudes(load(x + d)));
  const float scale = reduce_max(largest) * step, inverse = inverse_of(scale);
  for (int d = 0; d < head_dim; d += 16) {
    store_i8((int8_t *)codes + d, scaled_int(load(x + d), inverse, 127.f));
    for (int i = d; i < d + 16; i++) codes[i] ^= 0x80;
  }
  return scale;
}

struct Range { uint16_t scale, minimum; };

// A group of at most 64 channels as 0 to 15, in channel order.
INL Range quantise_4(const float *x, int channels, const kvr::Plane &plane, uint8_t *codes) {
  F low = set1(FINITE), high = set1(-FINITE), largest = zero();
  for (int d = 0; d < channels; d += 16) {
    const F v = load(x + d), n = numbers(v);
    low = min(low, n);
    high = max(high, n);
    largest = max(largest, magnitudes(v));
  }
  const float lo = -reduce_max(sub(zero(), low)), range = reduce_max(high) - lo;
  float scale = range * plane.step, minimum = __builtin_fmaf(range, plane.shrink, lo);
  if (scale < SMALLEST_HALF) scale = SMALLEST_HALF;
  if (!(reduce_max(largest) < FINITE)) scale = __builtin_inff();
  if (!(range < FINITE)) minimum = __builtin_inff();
  if (minimum < SMALLEST_HALF && minimum > -SMALLEST_HALF) minimum = 0;
  Range range16 = {half_bits(scale), half_bits(minimum)};
  if ((range16.minimum & 0x7fff) == 0x7c00) range16.scale = 0x7c00;
  const float inverse = range16.scale == 0x7c00 ? 0.f : 1.f / half_value(range16.scale);
  const F from = set1(range16.scale == 0x7c00 ? 0.f : half_value(range16.minimum));
  for (int d = 0; d < channels; d += 16)
    store_i8((int8_t *)codes + d,
             round_int(max(min(mul(sub(numbers(load(x + d)), from), set1(inverse)), set1(15.f)), zero())));
  return range16;
}

// All groups of a row; scales and minima go to their places behind the tile's codes.
INL void quantise_groups(const float *x, int head_dim, int token, const kvr::Plane &plane, uint8_t *codes, uint8_t *tile) {
  const int groups = (head_dim + kvr::CHANNEL_GROUP - 1) / kvr::CHANNEL_GROUP;
  uint16_t *scales = (uint16_t *)(tile + plane.tile_bytes - (size_t)groups * 128), *minima = scales + (size_t)groups * 32;
  for (int g = 0; g < groups; g++) {
    const int d = g * kvr::CHANNEL_GROUP, left = head_dim - d;
    const Range range = quantise_4(x + d, left < kvr::CHANNEL_GROUP ? left : kvr::CHANNEL_GROUP, plane, codes + d);
    scales[g * 32 + token] = range.scale;
    minima[g * 32 + token] = range.minimum;
  }
}

INL void encode_key_8(const float *k, int head_dim, int token, const kvr::Plane &plane, uint8_t *tile) {
  alignas(64) uint8_t codes[256];
  ((float *)(tile + (size_t)head_dim * 32))[token] = quantise_8(k, head_dim, plane.step, codes);
  uint32_t *to = (uint32_t *)tile + (size_t)(token / 16) * head_dim * 4 + token % 16;
  for (int u = 0; u < head_dim / 4; u++) __builtin_memcpy(to + u * 16, codes + u * 4, 4);
}

INL void encode_value_8(const float *v, int head_dim, int token, const kvr::Plane &plane, uint8_t *tile) {
  alignas(64) uint8_t codes[256];
  ((float *)(tile + (size_t)head_dim * 32))[token] = quantise_8(v, head_dim, plane.step, codes);
  for (int d = 0; d < head_dim; d += 16) store_fourth_u8(tile + (size_t)d * 32 + token / 4 * 64 + token % 4, load_u8(codes + d));
}

INL void encode_key_4(const float *k, int head_dim, int token, const kvr::Plane &plane, uint8_t *tile) {
  alignas(64) uint8_t codes[256];
  quantise_groups(k, head_dim, token, plane, codes, tile);
  uint8_t *to = tile + (size_t)(token / 16) * head_dim * 8 + token % 16 * 4;
  for (int u = 0; u < head_dim / 8; u++) {
    uint32_t low, high;  // four codes each
    __builtin_memcpy(&low, codes + 8 * u, 4);
    __builtin_memcpy(&high, codes + 8 * u + 4, 4);
    low |= high << 4;
    __builtin_memcpy(to + u * 64, &low, 4);
  }
}

INL void encode_value_4(const float *v, int head_dim, int token, const kvr::Plane &plane, uint8_t *tile) {
  alignas(64) uint8_t codes[256];
  quantise_groups(v, head_dim, token, plane, codes, tile);
  uint8_t *to = tile + token / 4 * 64 + token % 4;
  for (int u = 0; u < (head_dim + 31) / 32; u++) {
    const I high = 32 * u + 16 < head_dim ? load_u8(codes + 32 * u + 16) : izero();
    store_fourth_u8(to + u * 512, iadd(load_u8(codes + 32 * u), shl<4>(high)));
  }
}

// One row of one head, as its plane stores it. `token` counts within the tile.
static void encode_row(const float *x, int head_dim, int token, const kvr::Plane &plane, bool value, uint8_t *tile) {
  switch (plane.codec) {
    case Codec::BF16: return value ? encode_value_bf16(x, head_dim, token, tile) : encode_key_bf16(x, head_dim, token, tile);
    case Codec::INT8: return value ? encode_value_8(x, head_dim, token, plane, tile) : encode_key_8(x, head_dim, token, plane, tile);
    case Codec::INT4: return value ? encode_value_4(x, head_dim, token, plane, tile) : encode_key_4(x, head_dim, token, plane, tile);
  }
}

}  // namespace KVR_ISA
