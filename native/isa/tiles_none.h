// A path without tiles: every block of weights goes through quantised_tile, every span through step_block.
#pragma once

namespace KVR_ISA {

template <kvr::Kind K> INL bool tiled_block(const kvr::Weights &, const kvr::Activations &, const kvr::Output &, int, int, int,
                                            void *) { return false; }

INL bool tiled_span(const ItemPages &, const AttendSpace &, int, int, int, int) { return false; }

constexpr bool HAS_TILES = false;
INL double tile_multiply_int8(int64_t) { return 0; }
INL double tile_multiply_bf16(int64_t) { return 0; }

INL void tiles_start() {}
INL void tiles_stop() {}

}  // namespace KVR_ISA
