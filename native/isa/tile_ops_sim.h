// The tile instructions in plain C++, after Intel's description of them (Architecture Instruction Set Extensions, chapter 3):
// so that the logic of the tile path is tested on machines that lack them.
#pragma once
#include <string.h>

#include "common.h"

namespace KVR_ISA {

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

struct Tiles {
  TileConfig config;
  alignas(64) uint8_t data[8][16][64];
};
static thread_local Tiles tiles;

INL void tile_configure(const TileConfig *config) {
  memset(&tiles, 0, sizeof tiles);
  tiles.config = *config;
}
INL void tile_free() {}

static void tile_zero(int t) { memset(tiles.data[t], 0, sizeof tiles.data[t]); }
static void tile_load(int t, const void *p, size_t stride) {
  tile_zero(t);
  for (int r = 0; r < tiles.config.rows[t]; r++) memcpy(tiles.data[t][r], (const uint8_t *)p + r * stride, tiles.config.row_bytes[t]);
}
static void tile_store(int t, void *p, size_t stride) {
  for (int r = 0; r < tiles.config.rows[t]; r++) memcpy((uint8_t *)p + r * stride, tiles.data[t][r], tiles.config.row_bytes[t]);
}
static void tile_dot_int8(int c, int a, int b) {
  for (int m = 0; m < tiles.config.rows[c]; m++)
    for (int n = 0; n < tiles.config.row_bytes[c] / 4; n++) {
      int32_t sum;
      memcpy(&sum, tiles.data[c][m] + 4 * n, 4);
      for (int k = 0; k < tiles.config.row_bytes[a]; k++)
        sum += (int32_t)(int8_t)tiles.data[a][m][k] * (int8_t)tiles.data[b][k / 4][4 * n + k % 4];
      memcpy(tiles.data[c][m] + 4 * n, &sum, 4);
    }
}
static float tile_bf16(const uint8_t *p) {
  uint16_t bits;
  memcpy(&bits, p, 2);
  const uint32_t wide = (uint32_t)bits << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}
// Two chains of FMAs, even and odd inputs, added to each other and then to the tile; denormals are zero (MXCSR has it so).
static void tile_dot_bf16(int c, int a, int b) {
  for (int m = 0; m < tiles.config.rows[c]; m++)
    for (int n = 0; n < tiles.config.row_bytes[c] / 4; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < tiles.config.row_bytes[a] / 4; k++) {
        even = __builtin_fmaf(tile_bf16(tiles.data[a][m] + 4 * k), tile_bf16(tiles.data[b][k] + 4 * n), even);
        odd = __builtin_fmaf(tile_bf16(tiles.data[a][m] + 4 * k + 2), tile_bf16(tiles.data[b][k] + 4 * n + 2), odd);
      }
      memcpy(&sum, tiles.data[c][m] + 4 * n, 4);
      sum = sum + (even + odd);
      memcpy(tiles.data[c][m] + 4 * n, &sum, 4);
    }
}

#define TILE_ZERO(t) tile_zero(t)
#define TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define TILE_DOT_INT8(c, a, b) tile_dot_int8(c, a, b)
#define TILE_DOT_BF16(c, a, b) tile_dot_bf16(c, a, b)

}  // namespace KVR_ISA
