// The attention kernel: decode, prefill, chunked prefill and shared prefixes are items of one kind.
//
// An item is (kv head, parts of 512 tokens, query rows); its spans say which of the rows find which tokens in the same pages:
// those are read once. Rows are handled in blocks that fit the registers; keys and values come from pages only, those written in
// this same step included.
#pragma once

namespace KVR_ISA {

// Scores s[r] of R rows with the 64 tokens of a step.
template <int R, Codec K> static void score_step(const StepTiles &tiles, const float *q, int hd, F (*s)[4]) {
  F pair[R][2];
  UNROLL for (int tile = 0; tile < 2; tile++) {
    const bool here = tile < tiles.count;
    if (here && K == Codec::BF16) score_tile<R>(tiles.keys[tile], hd, q, hd, tiles.next_keys[tile], pair);
    if (here && K == Codec::INT8) score_tile_8<R>(tiles.keys[tile], hd, q, tiles.next_keys[tile], pair);
    if (here && K == Codec::INT4) score_tile_4<R>(tiles.keys[tile], hd, q, tiles.next_keys[tile], pair);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < 2; h++) s[r][2 * tile + h] = here ? pair[r][h] : set1(MASKED);
  }
}

// o[r] += p[r] V of R rows over the 64 tokens of a step.
template <int R, Codec V> static void value_step(const StepTiles &tiles, int hd, const F (*p)[4], float *weights, float *o) {
  if (V == Codec::INT8) value_step_8<R>(tiles, hd, p, o, hd);
  if (V == Codec::INT4) value_step_4<R>(tiles, hd, p, o, hd);
  if (V != Codec::BF16) return;
  for (int r = 0; r < R; r++)
    UNROLL for (int i = 0; i < 4; i++) store(weights + r * kvr::STEP_TOKENS + 16 * i, round_bf16(p[r][i]));
  for (int tile = 0; tile < tiles.count; tile++)
    value_tile<R>(tiles.values[tile], hd, weights + tile * kvr::TILE_TOKENS, kvr::STEP_TOKENS, tiles.next_values[tile], o, hd);
}

// What a head's codecs come down to, for 1 to ATTEND_ROWS rows.
using ScoreStep = void (*)(const StepTiles &, const float *, int, F (*)[4]);
using ValueStep = void (*)(const StepTiles &, int, const F (*)[4], float *, float *);
struct StepKernels {
  ScoreStep scores[ATTEND_ROWS];
  ValueStep values[ATTEND_ROWS];
};
template <Codec C, int R = ATTEND_ROWS> INL void choose_scores(StepKernels &kernels) {
  kernels.scores[R - 1] = score_step<R, C>;
  if constexpr (R > 1) choose_scores<C, R - 1>(kernels);
}
template <Codec C, int R = ATTEND_ROWS> INL void choose_values(StepKernels &kernels) {
  kernels.values[R - 1] = value_step<R, C>;
  if constexpr (R > 1) choose_values<C, R - 1>(kernels);
}
static StepKernels step_kernels(Codec keys, Codec values) {
  StepKernels kernels;
  switch (keys) {
    case Codec::BF16: choose_scores<Codec::BF16>(kernels); break;
    case Codec::INT8: choose_scores<Codec::INT8>(kernels); break;
    case Codec::INT4: choose_scores<Codec::INT4>(kernels);
  }
  switch (values) {
    case Codec::BF16: choose_values<Codec::BF16>(kernels); break;
    case Codec::INT8: choose_values<Codec::INT8>(kernels); break;
    case Codec::INT4: choose_values<Codec::INT4>(kernels);
  }
  return kernels;
}

// A few rows against one step.
INL void step_block(const StepKernels &kernels, const StepTiles &tiles, const AttendSpace &space, int hd, int row, int rows) {
  F s[ATTEND_ROWS][4];
  float *o = space.values + (size_t)row * hd;
  kernels.scores[rows - 1](tiles, space.q + (size_t)row * hd, hd, s);
  float *sums = space.sums + (size_t)row * 16;
  for (int r = 0; r < rows; r++) {
    mask_step(s[r], space.starts[row + r] - tiles.t0, space.limits[row + r] - tiles.t0);
    const float scale = renew_maximum(s[r], space.maxima[row + r]);
    if (scale == 1.f) continue;
    store(sums + r * 16, mul(load(sums + r * 16), set1(scale)));
    for (int d = r * hd; d < (r + 1) * hd; d += 16) store(o + d, mul(load(o + d), set1(scale)));
  }
  for (int r = 0; r < rows; r++) store(sums + r * 16, add(load(sums + r * 16), weigh(s[r], space.maxima[row + r])));
  kernels.values[rows - 1](tiles, hd, s, space.weights, o);
}

// The rows [row, row + rows) of an item over the tokens [begin, end), which lie in one part.
static void attend_span(const ItemPages &pages, const StepKernels &kernels, const AttendSpace &space, int row, int rows, int begin, int end) {
  const int hd = pages.args.kv.head_dim, blocks = (rows + ATTEND_ROWS - 1) / ATTEND_ROWS;
  int longest = 0, earliest = 0x7fffffff;
  for (int r = row; r < row + rows; r++) {
    longest = space.limits[r] > longest ? space.limits[r] : longest;
    earliest = space.starts[r] < earliest ? space.starts[r] : earliest;
  }
  if (earliest > begin) begin += (earliest - begin) / kvr::STEP_TOKENS * kvr::STEP_TOKENS;
  if (longest < end) end = longest;
  if (pages.keys == Codec::BF16 && pages.values == Codec::BF16 && tiled_span(pages, space, row, rows, begin, end)) return;
  for (int t0 = begin; t0 < end; t0 += kvr::STEP_TOKENS) {
    StepTiles tiles = step_tiles(pages, t0, end, space.tile);
    for (int b = 0; b < blocks; b++) {
      const int from = row + rows * b / blocks, n = row + rows * (b + 1) / blocks - from;
      if (!sees(space, from, n, t0)) continue;
      StepTiles mine = tiles;
      if (mine.count == 2 && !sees(space, from, n, t0 + kvr::TILE_TOKENS)) mine.count = 1;
      step_block(kernels, mine, space, hd, from, n);
      fetched(tiles);
    }
    if (tiles.count == 1 && pages.next.seq >= 0) fetch_second_tiles(pages);
  }
}

// All rows of an item over the part from `begin`.
static void attend_part(ItemPages &pages, const StepKernels &kernels, const AttendSpace &space, const kvr::AttendItem &item,
                        const Ahead &later, int begin) {
  const int hd = pages.args.kv.head_dim, group = pages.args.kv.group_size, end = begin + kvr::PART_TOKENS;
  for (int r = 0; r < space.rows; r++) {
    store(space.sums + (size_t)r * 16, zero());
    space.maxima[r] = LOWEST;
    for (int d = 0; d < hd; d += 16) store(space.values + (size_t)r * hd + d, zero());
  }
  for (int i = item.span_begin; i < item.span_end; i++) {
    const kvr::AttendSpan &span = pages.args.spans[i];
    const int from = span.begin > begin ? span.begin : begin, to = span.end < end ? span.end : end;
    if (from >= to) continue;
    pages.seq = span.seq;
    pages.kv_len = pages.args.step.kv_len[span.seq];
    const kvr::AttendSpan *next = i + 1 < item.span_end ? &span + 1 : nullptr;
    pages.next = to < span.end ? Ahead{-1, 0, 0} : next ? Ahead{next->seq, next->begin, pages.kv_head} : later;
    attend_span(pages, kernels, space, span.first * group, span.count * group, from, to);
  }
}

// Fetches the queries of an item; returns the first position that any row sees.
static int gather_rows(const ItemPages &pages, const AttendSpace &space, const kvr::AttendItem &item) {
  const kvr::AttendArgs &args = pages.args;
  const int hd = args.kv.head_dim, group = args.kv.group_size;
  int earliest = 0x7fffffff;
  for (int r = 0; r < space.rows; r++) {
    const int token = args.row_list[item.first + r / group], limit = args.step.positions[token] + 1;
    const int start = args.window && limit > args.window ? limit - args.window : 0;
    const float *q = args.queries + (((size_t)token * args.kv.kv_heads + pages.kv_head) * group + r % group) * hd;
    float *to = space.q + (size_t)r * hd;
    space.starts[r] = start;
    space.limits[r] = limit;
    earliest = start < earliest ? start : earliest;
    if (pages.keys != Codec::BF16) quantise_query(q, hd, to);
    else for (int d = 0; d < hd; d += 16) store(to + d, load(q + d));
  }
  return earliest;
}

// Where a unit begins to read: its first span, or later where a window leaves that out.
INL Ahead first_read(const kvr::AttendArgs &args, const kvr::AttendUnit &unit) {
  if (!unit.item) return {-1, 0, 0};
  const kvr::AttendSpan &span = args.spans[unit.item->span_begin];
  const int limit = args.step.positions[args.row_list[unit.item->first + span.first]] + 1;
  const int start = args.window && limit > args.window ? (limit - args.window) / kvr::STEP_TOKENS * kvr::STEP_TOKENS : 0;
  return {span.seq, start > span.begin ? start : span.begin, unit.kv_head};
}

// `later`: what this thread will do next, as likely as not; its first step is fetched during the last of this unit's.
static void attend(const kvr::AttendArgs &args, kvr::AttendUnit unit, kvr::AttendUnit later) {
  const kvr::AttendItem &item = *unit.item;
  const int kv_head = unit.kv_head;
  const Ahead ahead = first_read(args, later);
  const int hd = args.kv.head_dim, group = args.kv.group_size, rows = item.count * group;
  const size_t heads = (size_t)args.kv.kv_heads * group;
  const AttendSpace space = carve(args.scratch, rows, hd);
  ItemPages pages = {args, 0, kv_head, 0, args.kv.plane(args.layer, false, kv_head).codec, args.kv.plane(args.layer, true, kv_head).codec, {-1, 0, 0}};
  const StepKernels kernels = step_kernels(pages.keys, pages.values);
  const int first_part = gather_rows(pages, space, item) / kvr::PART_TOKENS;
  for (int p = first_part > item.part_begin ? first_part : item.part_begin; p < item.part_end; p++) {
    const int begin = p * kvr::PART_TOKENS;
    attend_part(pages, kernels, space, item, ahead, begin);
    for (int r = 0; r < rows; r++) {
      if (space.limits[r] <= begin || space.starts[r] >= begin + kvr::PART_TOKENS) continue;
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
    float *out = args.out + (size_t)token * args.out_stride + ((size_t)kv_head * group + r % group) * hd;
    finish_row(space.totals[r], space.merged + (size_t)r * hd, hd, out);
    if (args.rotated_values) hadamard(out, hd);
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
    float *out = args.out + (size_t)row * args.out_stride + (size_t)h * hd;
    finish_row(total, values, hd, out);
    if (args.rotated_values) hadamard(out, hd);
  }
}

}  // namespace KVR_ISA
