// The linear of every weight kind over a range of column blocks.
#pragma once

namespace KVR_ISA {

constexpr int SUPER_ROWS = 256;      // rows whose activations stay in the second-level cache while weights stream past

// Blocks [block_begin, block_end) of columns. TILE: the routine for one tile of rows, see quantised_tile.
template <Kind K> static void quantised(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out, int rows,
                                        int block_begin, int block_end, void *scratch) {
  for (int super = 0; super < rows; super += SUPER_ROWS) {
    const int end = rows < super + SUPER_ROWS ? rows : super + SUPER_ROWS;
    for (int block = block_begin; block < block_end; block++) {
      if (tiled_block<K>(weights, a, out, super, end, block, scratch)) continue;
      for (int row = super; row < end; row += kvr::TILE_ROWS) {
        const int n = end - row < kvr::TILE_ROWS ? end - row : kvr::TILE_ROWS;
        quantised_tile<K>(weights, a, out, row, n, block, row == super ? PREFETCH_BYTES : 0);
      }
    }
  }
}

static void linear(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out, int rows, int block_begin,
                   int block_end, void *scratch) {
  switch (weights.kind) {
    case Kind::Q4_MIN: quantised<Kind::Q4_MIN>(weights, a, out, rows, block_begin, block_end, scratch); break;
    case Kind::Q4: quantised<Kind::Q4>(weights, a, out, rows, block_begin, block_end, scratch); break;
    case Kind::Q8_MIN: quantised<Kind::Q8_MIN>(weights, a, out, rows, block_begin, block_end, scratch); break;
    case Kind::Q8: quantised<Kind::Q8>(weights, a, out, rows, block_begin, block_end, scratch); break;
    case Kind::F16: dense<Kind::F16>(weights, a, out, rows, block_begin, block_end); break;
    case Kind::BF16: dense<Kind::BF16>(weights, a, out, rows, block_begin, block_end); break;
    case Kind::F32: dense<Kind::F32>(weights, a, out, rows, block_begin, block_end); break;
  }
}

}  // namespace KVR_ISA
