// The machine's limits, through the instructions that the kernels use.
#pragma once

namespace KVR_ISA {

// Sums a buffer; the value keeps the loads alive.
static double read_bytes(const uint8_t *p, size_t n) {
  I a[8];
  UNROLL for (int i = 0; i < 8; i++) a[i] = izero();
  for (size_t at = 0; at + 512 <= n; at += 512)
    UNROLL for (int i = 0; i < 8; i++) a[i] = iadd(a[i], iload(p + at + i * 64));
  UNROLL for (int i = 1; i < 8; i++) a[0] = iadd(a[0], a[i]);
  int32_t lanes[16];
  istore(lanes, a[0]);
  return (double)lanes[0] + lanes[7];
}

static volatile float sink;

// Integer dot products in registers; returns the operations done (a multiply and an add count two).
static double multiply_int8(int64_t iterations) {
  if (HAS_TILES) return tile_multiply_int8(iterations);
  uint8_t bytes[12][64];  // all different: no product serves for two
  for (int i = 0; i < 12 * 64; i++) bytes[i / 64][i % 64] = (uint8_t)(i % 15);
  int32_t x4 = 0x01010101;
  I a[12];
  UNROLL for (int i = 0; i < 12; i++) a[i] = iadd(iota(), iset1(16 * i));
  for (int64_t k = 0; k < iterations; k++) {
    __asm__ volatile("" : "+r"(x4));  // may have changed: no product can be computed once and for all
    UNROLL for (int i = 0; i < 12; i++) a[i] = dot4(a[i], load_bytes(bytes[i]), x4);
    keep(a[0]);
  }
  UNROLL for (int i = 1; i < 12; i++) a[0] = iadd(a[0], a[i]);
  int32_t lanes[16];
  istore(lanes, a[0]);
  sink = (float)lanes[0];
  return (double)iterations * 12 * 128;
}

// The products of attention: fp32 FMAs, or bf16 tiles.
static double multiply_float(int64_t iterations) {
  if (HAS_TILES) return tile_multiply_bf16(iterations);
  F a[12];
  UNROLL for (int i = 0; i < 12; i++) a[i] = to_float(iadd(iota(), iset1(16 * i)));
  const F x = set1(0.999f), y = set1(0.001f);
  for (int64_t k = 0; k < iterations; k++) {
    UNROLL for (int i = 0; i < 12; i++) a[i] = fma(a[i], x, y);
    keep(a[0]);
  }
  UNROLL for (int i = 1; i < 12; i++) a[0] = add(a[0], a[i]);
  sink = sum16(a[0]);
  return (double)iterations * 12 * 32;
}

}  // namespace KVR_ISA
