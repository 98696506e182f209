#include "formats.h"

#include <stdlib.h>

namespace kvr {
namespace {

constexpr int HALF = GROUP / 2;

// The nearest whole number, ties to even; in a form that the compiler turns into vector code.
inline float whole(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// 32 integers from -32 to 31.
void read_six_bits(const uint8_t *block, int g, float *q) {
  Words low = halves(block + g / 4 * 64 + g % 2 * 32, g % 4 / 2 * 4), high;
  memcpy(high.w, block + 128 + g / 4 * 32, 32);
  alignas(16) uint8_t bytes[GROUP];
  for (int i = 0; i < 4; i++) low.w[i] |= (high.w[i] >> (g % 4 * 2) & 3 * EACH) << 4;
  memcpy(bytes, low.w, GROUP);
  for (int i = 0; i < GROUP; i++) q[i] = (float)((int)bytes[i] - 32);
}

float largest_of(const float *x) {
  float largest = 0;
  for (int i = 0; i < HALF; i++) largest = std::max(largest, fabsf(x[i]));
  return largest;
}

}  // namespace

void Q6_K::read(const uint8_t *block, int g, Group &to) {
  alignas(16) float q[GROUP];
  read_six_bits(block, g, q);
  const int8_t *scales = (const int8_t *)block + 192 + 2 * g;
  const float d = half_to_float(load_u16(block + 208));
  const int kept = abs(scales[0]) < abs(scales[1]);  // the half with the larger scale
  const float scale = scales[kept], other = scales[!kept], ratio = scale == 0 ? 0 : other / scale;
  // The finest grid on which the kept half stays as it is and nothing leaves int8; -32 becomes -128.
  const float extent = std::max(largest_of(q + kept * HALF), largest_of(q + !kept * HALF) * fabsf(ratio));
  const float factor = extent > 0 ? std::max(4.f, floorf(127 / extent)) : 4;
  to.scale = float_to_half(d * scale / factor);
  const float step = half_to_float(to.scale);
  float worst = 0, largest = 0;
  for (int half = 0; half < 2; half++) {
    const float multiple = half == kept ? factor : factor * ratio, exact = d * (half == kept ? scale : other);
    for (int i = half * HALF; i < (half + 1) * HALF; i++) {
      const float n = std::min(whole(q[i] * multiple), 127.f), weight = exact * q[i];
      to.quants[i] = (uint8_t)((int)n + 128);
      worst = std::max(worst, fabsf(step * n - weight));
      largest = std::max(largest, fabsf(weight));
    }
  }
  to.error = largest > 0 ? worst / largest : 0;
}

}  // namespace kvr
