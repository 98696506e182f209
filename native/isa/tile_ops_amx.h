// The tile instructions: eight registers of up to 16 rows x 64 bytes.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace KVR_ISA {

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// GCC 12 declares only 8 of the 64 bytes as read, so the configuration is static data behind a compiler barrier:
// were it filled on the stack, the stores could be dropped and the next tile instruction would be illegal.
INL void tile_configure(const TileConfig *config) {
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(config);
}
INL void tile_free() { _tile_release(); }

// Register numbers are part of the instructions, hence macros. GCC's load does not say that it reads memory: without the
// barrier, what was stored for it could come later, or never.
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p, stride)      \
  do {                               \
    __asm__ volatile("" ::: "memory"); \
    _tile_loadd(t, p, stride);       \
  } while (0)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TILE_DOT_INT8(c, a, b) _tile_dpbssd(c, a, b)
#define TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)

}  // namespace KVR_ISA
