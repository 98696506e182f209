// The tile instructions on lanes, after Intel's description of them (Architecture Instruction Set Extensions, chapter 3):
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
// The product of signed bytes from one of unsigned ones: 128 is added to b, and 128 times the sum of a taken off.
static void tile_dot_int8(int c, int a, int b) {
  for (int m = 0; m < tiles.config.rows[c]; m++) {
    I sums = iload(tiles.data[c][m]);
    int32_t total = 0;
    for (int k = 0; k < tiles.config.row_bytes[a]; k++) total += (int8_t)tiles.data[a][m][k];
    for (int k = 0; k < tiles.config.row_bytes[a] / 4; k++) {
      int32_t four;
      memcpy(&four, tiles.data[a][m] + 4 * k, 4);
      sums = dot8(sums, _mm512_xor_si512(load_bytes(tiles.data[b][k]), _mm512_set1_epi8((char)128)), four);
    }
    istore(tiles.data[c][m], isub(sums, iset1(128 * total)));
  }
}
// Two chains of FMAs, even and odd inputs, added to each other and then to the tile; denormals are zero (MXCSR has it so).
static void tile_dot_bf16(int c, int a, int b) {
  for (int m = 0; m < tiles.config.rows[c]; m++) {
    F even = zero(), odd = zero();
    for (int k = 0; k < tiles.config.row_bytes[a] / 4; k++) {
      int32_t pair;
      memcpy(&pair, tiles.data[a][m] + 4 * k, 4);
      const I x = iset1(pair), y = iload(tiles.data[b][k]);
      even = fma(even_bf16(x), even_bf16(y), even);
      odd = fma(odd_bf16(x), odd_bf16(y), odd);
    }
    float *to = (float *)tiles.data[c][m];
    store(to, add(load(to), add(even, odd)));
  }
}

#define TILE_ZERO(t) tile_zero(t)
#define TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define TILE_DOT_INT8(c, a, b) tile_dot_int8(c, a, b)
#define TILE_DOT_BF16(c, a, b) tile_dot_bf16(c, a, b)

}  // namespace KVR_ISA
