// What one thread works on during one attention item: its rows, its pages, the tiles of a step.
#pragma once

namespace KVR_ISA {

struct Merged { float maximum, sum; };  // a row's running result over parts; its values lie apart

// This thread's working space for one item, carved from one buffer. Rows are (token, head of the group) pairs.
struct AttendSpace {
  int rows;
  float *q;        // [row][head_dim], or integers in their place (attend_int.h)
  float *values;   // [row][head_dim]: of the part in hand
  float *merged;   // [row][head_dim]: of the parts before
  float *sums;     // [row][16]
  float *maxima;   // [row]
  Merged *totals;  // [row]
  int *starts, *limits;  // [row]: it sees positions [start, limit)
  float *weights;  // [ATTEND_ROWS][64], bf16-valued
  uint8_t *tile;   // a value tile whose unwritten tokens are zeroed
};

// What a thread will read next. No sequence: -1.
struct Ahead { int seq, begin, kv_head; };

// Where the keys and values of a span lie, and how they are stored.
struct ItemPages {
  const kvr::AttendArgs &args;
  int seq, kv_head, kv_len;
  Codec keys, values;
  Ahead next;  // behind the span in hand
};

INL const uint8_t *token_tile(const ItemPages &pages, const Ahead &at, bool value) {
  return tile_at(pages.args.kv, pages.args.step, at.seq, at.begin, pages.args.layer, value, at.kv_head);
}

// Rows of a page that are not written may hold anything, NaN included, and 0 x NaN is NaN.
INL const uint8_t *written_values(const uint8_t *tile, int written, int head_dim, uint8_t *copy) {
  if (written >= kvr::TILE_TOKENS) return tile;
  const int pairs = written / 2;
  for (int d = 0; d < head_dim / 16; d++)
    for (int i = 0; i < 16; i++) {
      I x = i < pairs ? iload(tile + (size_t)d * 1024 + i * 64) : izero();
      if (i == pairs && written % 2) x = iand(iload(tile + (size_t)d * 1024 + i * 64), iset1(0xffff));
      istore(copy + (size_t)d * 1024 + i * 64, x);
    }
  return copy;
}

// The one or two tiles of a step of 64 tokens, and those of the next step, to be fetched a whole step ahead; or those of this one: nothing is to be fetched.
struct StepTiles {
  int t0, count;
  const uint8_t *keys[2], *values[2], *next_keys[2], *next_values[2];
};

INL StepTiles step_tiles(const ItemPages &pages, int t0, int end, uint8_t *copy) {
  StepTiles tiles;
  tiles.t0 = t0;
  tiles.count = t0 + kvr::TILE_TOKENS < end ? 2 : 1;
  const bool last = t0 + kvr::STEP_TOKENS >= end && pages.next.seq >= 0;
  for (int i = 0; i < tiles.count; i++) {
    const int token = t0 + i * kvr::TILE_TOKENS;
    const Ahead here = {pages.seq, token, pages.kv_head};
    Ahead later = last ? pages.next : here;
    later.begin += last ? i * kvr::TILE_TOKENS : kvr::STEP_TOKENS;
    const bool any = later.begin < pages.args.step.kv_len[later.seq];
    tiles.keys[i] = token_tile(pages, here, false);
    tiles.values[i] = token_tile(pages, here, true);
    tiles.next_keys[i] = any ? token_tile(pages, later, false) : tiles.keys[i];
    tiles.next_values[i] = any ? token_tile(pages, later, true) : tiles.values[i];
    if (pages.values == Codec::BF16) tiles.values[i] = written_values(tiles.values[i], pages.kv_len - token, pages.args.kv.head_dim, copy);
  }
  return tiles;
}

// A last step of one tile fetches one ahead; this fetches the other.
INL void fetch_second_tiles(const ItemPages &pages) {
  const Ahead second = {pages.next.seq, pages.next.begin + kvr::TILE_TOKENS, pages.next.kv_head};
  if (second.begin >= pages.args.step.kv_len[second.seq]) return;
  for (int value = 0; value < 2; value++) {
    const uint8_t *tile = token_tile(pages, second, value);
    const size_t bytes = pages.args.kv.plane(pages.args.layer, value, second.kv_head).tile_bytes;
    for (size_t at = 0; at < bytes; at += 64) prefetch_l2(tile + at);
  }
}

// The first block of rows has fetched the next step's tiles; the others need not.
INL void fetched(StepTiles &tiles) {
  for (int i = 0; i < tiles.count; i++) tiles.next_keys[i] = tiles.keys[i], tiles.next_values[i] = tiles.values[i];
}

INL AttendSpace carve(float *scratch, int rows, int head_dim) {
  AttendSpace s;
  s.rows = rows;
  rows = (rows + 15) / 16 * 16;  // every array starts on a cache line
  s.q = scratch;
  s.values = s.q + (size_t)rows * head_dim;
  s.merged = s.values + (size_t)rows * head_dim;
  s.sums = s.merged + (size_t)rows * head_dim;
  s.maxima = s.sums + (size_t)rows * 16;
  s.totals = (Merged *)(s.maxima + rows);
  s.starts = (int *)(s.totals + rows);
  s.limits = s.starts + rows;
  s.weights = (float *)(s.limits + rows);
  s.tile = (uint8_t *)(s.weights + ATTEND_ROWS * kvr::STEP_TOKENS);
  return s;
}

// Does any of the rows see a token of the step from t0?
INL bool sees(const AttendSpace &space, int row, int rows, int t0) {
  for (int r = row; r < row + rows; r++)
    if (space.limits[r] > t0 && space.starts[r] < t0 + kvr::STEP_TOKENS) return true;
  return false;
}

}  // namespace KVR_ISA
