// The attention kernel: decode, prefill, chunked prefill and shared prefixes are items of one kind.
//
// An item is (kv head, parts of 512 tokens, all query rows that see exactly these pages). Its rows are handled in blocks
// that fit the registers; keys and values come from pages only, those written in this same step included.
#pragma once

namespace KVR_ISA {

// R rows against one step.
template <int R> INL void step_rows(const StepTiles &tiles, const AttendSpace &space, int hd, int row) {
  F s[R][4], pair[R][2];
  UNROLL for (int tile = 0; tile < 2; tile++) {
    const bool here = tile < tiles.count;
    if (here) score_tile<R>(tiles.keys[tile], hd, space.q + (size_t)row * hd, hd, tiles.next_keys[tile], pair);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < 2; h++) s[r][2 * tile + h] = here ? pair[r][h] : set1(MASKED);
  }
  UNROLL for (int r = 0; r < R; r++) {
    mask_step(s[r], space.starts[row + r] - tiles.t0, space.limits[row + r] - tiles.t0);
    F sums = load(space.sums + (size_t)(row + r) * 16);
    const float scale = softmax_step(s[r], space.maxima[row + r], sums);
    store(space.sums + (size_t)(row + r) * 16, sums);
    if (scale != 1.f) {
      float *o = space.values + (size_t)(row + r) * hd;
      for (int d = 0; d < hd; d += 16) store(o + d, mul(load(o + d), set1(scale)));
    }
    UNROLL for (int i = 0; i < 4; i++) store(space.weights + r * kvr::STEP_TOKENS + 16 * i, round_bf16(s[r][i]));
  }
  for (int tile = 0; tile < tiles.count; tile++)
    value_tile<R>(tiles.values[tile], hd, space.weights + tile * kvr::TILE_TOKENS, kvr::STEP_TOKENS, tiles.next_values[tile],
                  space.values + (size_t)row * hd, hd);
}

static void step_block(const StepTiles &tiles, const AttendSpace &space, int hd, int row, int rows) {
  switch (rows) {
#define CASE(R) case R: step_rows<(R <= ATTEND_ROWS ? R : 1)>(tiles, space, hd, row); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

// All rows over the tokens [begin, end) of one part.
static void attend_part(const ItemPages &pages, const AttendSpace &space, int rows, int begin, int end) {
  const int hd = pages.args.kv.head_dim, blocks = (rows + ATTEND_ROWS - 1) / ATTEND_ROWS;
  for (int r = 0; r < rows; r++) {
    store(space.sums + (size_t)r * 16, zero());
    space.maxima[r] = LOWEST;
    for (int d = 0; d < hd; d += 16) store(space.values + (size_t)r * hd + d, zero());
  }
  if (tiled_part(pages, space, rows, begin, end)) return;
  for (int t0 = begin; t0 < end; t0 += kvr::STEP_TOKENS) {
    const StepTiles tiles = step_tiles(pages, t0, end, space.tile);
    for (int b = 0; b < blocks; b++) {
      const int row = rows * b / blocks, n = rows * (b + 1) / blocks - row;
      if (sees(space, row, n, t0)) step_block(tiles, space, hd, row, n);
    }
  }
}

static void attend(const kvr::AttendArgs &args, const kvr::AttendItem &item, int kv_head) {
  const int hd = args.kv.head_dim, group = args.kv.group_size, rows = item.count * group;
  const size_t heads = (size_t)args.kv.kv_heads * group;
  const AttendSpace space = carve(args.scratch, rows, hd);
  int longest = 0, earliest = 0x7fffffff;
  for (int i = 0; i < item.count; i++) {
    const int token = args.row_list[item.first + i], limit = args.step.positions[token] + 1;
    const int start = args.window && limit > args.window ? limit - args.window : 0;
    longest = limit > longest ? limit : longest;
    earliest = start < earliest ? start : earliest;
    for (int g = 0; g < group; g++) {
      const float *q = args.queries + ((size_t)token * heads + (size_t)kv_head * group + g) * hd;
      space.starts[i * group + g] = start;
      space.limits[i * group + g] = limit;
      for (int d = 0; d < hd; d += 16) store(space.q + (size_t)(i * group + g) * hd + d, load(q + d));
    }
  }
  const ItemPages pages = {args, item.seq, kv_head, args.step.kv_len[item.seq]};
  const int first_part = earliest / kvr::PART_TOKENS;
  for (int p = first_part > item.part_begin ? first_part : item.part_begin; p < item.part_end; p++) {
    const int begin = p * kvr::PART_TOKENS, end = longest < begin + kvr::PART_TOKENS ? longest : begin + kvr::PART_TOKENS;
    const int skipped = earliest > begin ? (earliest - begin) / kvr::STEP_TOKENS * kvr::STEP_TOKENS : 0;
    attend_part(pages, space, rows, begin + skipped, end);
    for (int r = 0; r < rows; r++) {
      if (space.limits[r] <= begin || space.starts[r] >= end) continue;
      const float sum = sum16(load(space.sums + (size_t)r * 16)), *values = space.values + (size_t)r * hd;
      if (item.split) {
        const int token = args.row_list[item.first + r / group];
        float *to = args.partials + ((size_t)(args.partial_base[token] + p) * heads + (size_t)kv_head * group + r % group) * (hd + 2);
        for (int d = 0; d < hd; d += 16) store(to + d, load(values + d));
        to[hd] = space.maxima[r];
        to[hd + 1] = sum;
      } else merge_part(space.totals[r], space.merged + (size_t)r * hd, p == space.starts[r] / kvr::PART_TOKENS, space.maxima[r], sum, values, hd);
    }
  }
  if (item.split) return;
  for (int r = 0; r < rows; r++) {
    const int token = args.row_list[item.first + r / group];
    finish_row(space.totals[r], space.merged + (size_t)r * hd, hd,
               args.out + (size_t)token * args.out_stride + ((size_t)kv_head * group + r % group) * hd);
  }
}

// Merges the parts of a row whose items were split.
static void merge(const kvr::AttendArgs &args, int row, int parts) {
  const int hd = args.kv.head_dim, heads = args.kv.kv_heads * args.kv.group_size, limit = args.step.positions[row] + 1;
  const int first = args.window && limit > args.window ? (limit - args.window) / kvr::PART_TOKENS : 0;
  for (int h = 0; h < heads; h++) {
    Merged total = {LOWEST, 0.f};
    float values[256];
    for (int p = first; p < parts; p++) {
      const float *from = args.partials + ((size_t)(args.partial_base[row] + p) * heads + h) * (hd + 2);
      merge_part(total, values, p == first, from[hd], from[hd + 1], from, hd);
    }
    finish_row(total, values, hd, args.out + (size_t)row * args.out_stride + (size_t)h * hd);
  }
}

}  // namespace KVR_ISA
