// Many rows on tiles: the linear's group sums on int8 tiles, attention's products on bf16 tiles.
// The bits are those of the vector path: int8 sums are exact, and the vector path takes the bf16 tile's order.
#pragma once

#include KVR_TILE_OPS

namespace KVR_ISA {

// Linear: 0-3 sums 16 x 16 int32, 4-5 activations 16 rows x 32, 6-7 weights 8 x (16 columns x 4 inputs).
static const TileConfig linear_tiles = {1, 0, {0}, {64, 64, 64, 64, 32, 32, 64, 64}, {16, 16, 16, 16, 16, 16, 8, 8}};
// Attention: 0-3 values and 4-5 scores 16 x 16 fp32, 6 rows x 32 bf16, 7 keys or values 16 x (16 x 2).
static const TileConfig attend_tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
static thread_local const TileConfig *configured;

INL void tiles_start() { configured = 0; }
INL void tiles_stop() {
  if (configured) tile_free();
  configured = 0;
}
INL void use_tiles(const TileConfig *config) {
  if (configured == config) return;
  tile_configure(config);
  configured = config;
}

constexpr int FEWEST_TILED_ROWS = 12;  // below, the vector path is as fast

struct UnpackedBlock {  // one block of columns, for as long as rows pass it
  int8_t *quants;       // [group][8][16 columns][4 inputs], signed
  float *scales, *minima;  // [group][16]
};

template <Kind K> INL UnpackedBlock unpack_block(const kvr::Weights &weights, int block, void *scratch) {
  const int groups = weights.inputs / kvr::GROUP;
  const uint8_t *w = weights.data + (size_t)block * weights.block_bytes;
  UnpackedBlock u;
  u.scales = (float *)scratch;
  u.minima = u.scales + (size_t)groups * 16;
  u.quants = (int8_t *)(u.minima + (size_t)groups * 16);
  for (int g = 0; g < groups; g++) {
    const GroupAt group = group_at<K>(w, g);
    if (g % 2 == 0) prefetch_pair<K>(group.quants + PREFETCH_BYTES);
    B v[8];
    load_group(group.quants, !kvr::eight_bits(K), v);
    UNROLL for (int j = 0; j < 8; j++) {
      if (K == Kind::Q4) v[j] = _mm512_sub_epi8(v[j], _mm512_set1_epi8(8));
      if (kvr::eight_bits(K)) v[j] = _mm512_xor_si512(v[j], _mm512_set1_epi8((char)128));
      istore(u.quants + (size_t)g * 512 + 64 * j, v[j]);
    }
    store(u.scales + g * 16, load_f16(group.scales));
    if (kvr::has_minimum(K)) store(u.minima + g * 16, load_f16(group.minima));
  }
  return u;
}

// Sums of group g begin in tile g % 4; they are stored two products later, so that the store waits for nothing.
#define ISSUE(g, c, a, b)                                                       \
  {                                                                             \
    TILE_ZERO(c);                                                               \
    TILE_LOAD(a, x + (size_t)(g) * kvr::TILE_ROWS * kvr::GROUP, kvr::GROUP);    \
    TILE_LOAD(b, u.quants + (size_t)(g) * 512, 64);                             \
    TILE_DOT_INT8(c, a, b);                                                     \
  }
#define ISSUE_NEXT(g, c, a, b) \
  if ((g) < groups) ISSUE(g, c, a, b)

template <Kind K> INL void fold_group(const UnpackedBlock &u, const int32_t *sums, const float *sx, const float *xs, int g, F *acc) {
  const F scale = load(u.scales + g * 16), minimum = kvr::has_minimum(K) ? load(u.minima + g * 16) : zero();
  UNROLL for (int r = 0; r < kvr::TILE_ROWS; r++) {
    acc[r] = fma(mul(to_float(iload(sums + r * 16)), set1(sx[g * kvr::TILE_ROWS + r])), scale, acc[r]);
    if (kvr::has_minimum(K)) acc[r] = fma(set1(xs[g * kvr::TILE_ROWS + r]), minimum, acc[r]);
  }
}

template <Kind K> INL void tile_of_rows(const UnpackedBlock &u, const kvr::Activations &a, const kvr::Output &out, int groups, int row,
                                        int rows, int block) {
  const size_t first = (size_t)(row / kvr::TILE_ROWS) * groups * kvr::TILE_ROWS;
  const int8_t *x = a.quants + first * kvr::GROUP;
  const float *sx = a.scale + first, *xs = a.scaled_sum + first;
  alignas(64) int32_t sums[2][kvr::TILE_ROWS * 16];
  F acc[kvr::TILE_ROWS];
  UNROLL for (int r = 0; r < kvr::TILE_ROWS; r++) acc[r] = zero();
  ISSUE(0, 0, 4, 6)
  ISSUE_NEXT(1, 1, 5, 7)
  for (int g = 0; g < groups; g += 4) {
#define STEP(i, c, ahead, ta, tb)                                        \
  if (g + i < groups) {                                                  \
    ISSUE_NEXT(g + i + 2, ahead, ta, tb)                                 \
    TILE_STORE(c, sums[i % 2], 64);                                      \
    if (g + i > 0) fold_group<K>(u, sums[(i + 1) % 2], sx, xs, g + i - 1, acc); \
  }
    STEP(0, 0, 2, 4, 6)
    STEP(1, 1, 3, 5, 7)
    STEP(2, 2, 0, 4, 6)
    STEP(3, 3, 1, 5, 7)
#undef STEP
  }
  fold_group<K>(u, sums[(groups - 1) % 2], sx, xs, groups - 1, acc);
  UNROLL for (int r = 0; r < kvr::TILE_ROWS; r++) if (r < rows) put(out, row + r, block, acc[r]);
}
#undef ISSUE
#undef ISSUE_NEXT

// Rows [row_begin, row_end), from a tile's first row, times one block of columns. False: too few rows.
template <Kind K> INL bool tiled_block(const kvr::Weights &weights, const kvr::Activations &a, const kvr::Output &out, int row_begin,
                                       int row_end, int block, void *scratch) {
  if (row_end - row_begin < FEWEST_TILED_ROWS) return false;
  use_tiles(&linear_tiles);
  const UnpackedBlock u = unpack_block<K>(weights, block, scratch);
  for (int row = row_begin; row < row_end; row += kvr::TILE_ROWS)
    tile_of_rows<K>(u, a, out, weights.inputs / kvr::GROUP, row, row_end - row < kvr::TILE_ROWS ? row_end - row : kvr::TILE_ROWS, block);
  return true;
}

// Operations done by `iterations` rounds of four independent products, for measuring the peak.
constexpr bool HAS_TILES = true;
static double tile_multiply_int8(int64_t iterations) {
  use_tiles(&linear_tiles);
  for (int64_t i = 0; i < iterations; i++) {
    TILE_DOT_INT8(0, 4, 6);
    TILE_DOT_INT8(1, 4, 7);
    TILE_DOT_INT8(2, 5, 6);
    TILE_DOT_INT8(3, 5, 7);
  }
  return (double)iterations * 4 * 2 * 16 * 16 * kvr::GROUP;
}
static double tile_multiply_bf16(int64_t iterations) {
  use_tiles(&attend_tiles);
  for (int64_t i = 0; i < iterations; i++) {
    TILE_DOT_BF16(0, 6, 7);
    TILE_DOT_BF16(1, 6, 7);
    TILE_DOT_BF16(2, 6, 7);
    TILE_DOT_BF16(3, 6, 7);
  }
  return (double)iterations * 4 * 2 * 16 * 16 * 32;
}

// ---- attention: 16 query rows at a time

struct TileRows {
  const AttendSpace &space;
  int row, count, head_dim;        // rows [row, row + count) of the item
  float *values;                   // theirs, [16][head_dim]: of all 16 something is read and written
  uint16_t *q;                     // [16][head_dim] bf16
  float *scores;                   // [2][16][64], of this step and the next
  uint16_t *weights;               // [2 tiles][16][32] bf16
};

INL void score_tiles(const TileRows &t, const StepTiles &tiles, float *scores) {
  for (int i = 0; i < tiles.count; i++) {
    TILE_ZERO(4);
    TILE_ZERO(5);
    for (int d = 0; d < t.head_dim; d += 32) {
      TILE_LOAD(6, t.q + d, (size_t)t.head_dim * 2);
      TILE_LOAD(7, tiles.keys[i] + (size_t)d * 32, 64);
      TILE_DOT_BF16(4, 6, 7);
      TILE_LOAD(7, tiles.keys[i] + (size_t)t.head_dim * 32 + (size_t)d * 32, 64);
      TILE_DOT_BF16(5, 6, 7);
    }
    TILE_STORE(4, scores + i * 32, 256);
    TILE_STORE(5, scores + i * 32 + 16, 256);
  }
}

// The softmax of one step; returns whether older values of any row are to be scaled, by `scales`.
INL bool weigh_tiles(const TileRows &t, const StepTiles &tiles, const float *scores, float *scales) {
  bool renewed = false;
  for (int r = 0; r < t.count; r++) {
    F x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = i / 2 < tiles.count ? load(scores + r * 64 + 16 * i) : set1(MASKED);
    mask_step(x, t.space.starts[t.row + r] - tiles.t0, t.space.limits[t.row + r] - tiles.t0);
    float *sums = t.space.sums + (size_t)(t.row + r) * 16;
    scales[r] = renew_maximum(x, t.space.maxima[t.row + r]);
    if (scales[r] != 1.f) store(sums, mul(load(sums), set1(scales[r])));
    renewed |= scales[r] != 1.f;
    store(sums, add(load(sums), weigh(x, t.space.maxima[t.row + r])));
    UNROLL for (int i = 0; i < 4; i++)
      _mm256_storeu_si256((__m256i *)(t.weights + (i / 2) * 512 + r * 32 + (i % 2) * 16), _mm512_cvtepi32_epi16(bf16_bits(x[i])));
  }
  return renewed;
}

INL void scale_values(const TileRows &t, const float *scales) {
  for (int r = 0; r < t.count; r++) {
    if (scales[r] == 1.f) continue;
    float *o = t.values + (size_t)r * t.head_dim;
    for (int d = 0; d < t.head_dim; d += 16) store(o + d, mul(load(o + d), set1(scales[r])));
  }
}

// values += weights V, for 32 or 64 channels from d.
INL void value_tiles(const TileRows &t, const StepTiles &tiles, int d) {
  float *values = t.values;
  const size_t stride = (size_t)t.head_dim * 4;
  const bool four = t.head_dim - d >= 64;
  TILE_LOAD(0, values + d, stride);
  TILE_LOAD(1, values + d + 16, stride);
  if (four) {
    TILE_LOAD(2, values + d + 32, stride);
    TILE_LOAD(3, values + d + 48, stride);
  }
  for (int i = 0; i < tiles.count; i++) {
    const uint8_t *v = tiles.values[i] + (size_t)d * 64;
    TILE_LOAD(6, t.weights + i * 512, 64);
    TILE_LOAD(7, v, 64);
    TILE_DOT_BF16(0, 6, 7);
    TILE_LOAD(7, v + 1024, 64);
    TILE_DOT_BF16(1, 6, 7);
    if (four) {
      TILE_LOAD(7, v + 2048, 64);
      TILE_DOT_BF16(2, 6, 7);
      TILE_LOAD(7, v + 3072, 64);
      TILE_DOT_BF16(3, 6, 7);
    }
  }
  TILE_STORE(0, values + d, stride);
  TILE_STORE(1, values + d + 16, stride);
  if (four) {
    TILE_STORE(2, values + d + 32, stride);
    TILE_STORE(3, values + d + 48, stride);
  }
}

static void attend_tile_rows(const ItemPages &pages, TileRows &t, int begin, int end) {
  for (int r = 0; r < 16; r++)
    for (int d = 0; d < t.head_dim; d += 16) {
      const F q = r < t.count ? load(t.space.q + (size_t)(t.row + r) * t.head_dim + d) : zero();
      _mm256_storeu_si256((__m256i *)(t.q + (size_t)r * t.head_dim + d), _mm512_cvtepi32_epi16(bf16_bits(q)));
    }
  for (int i = 0; i < 2 * 512; i += 32) istore(t.weights + i, izero());
  while (begin < end && !sees(t.space, t.row, t.count, begin)) begin += kvr::STEP_TOKENS;  // before the rows' windows
  if (begin >= end) return;
  StepTiles tiles = step_tiles(pages, begin, end, t.space.tile);
  score_tiles(t, tiles, t.scores);
  for (int t0 = begin, i = 0; t0 < end && sees(t.space, t.row, t.count, t0); t0 += kvr::STEP_TOKENS, i ^= 1) {
    StepTiles next = tiles;
    if (t0 + kvr::STEP_TOKENS < end) {  // the next step's scores fill the time of this step's softmax
      next = step_tiles(pages, t0 + kvr::STEP_TOKENS, end, t.space.tile);
      score_tiles(t, next, t.scores + (i ^ 1) * 1024);
    }
    float scales[16];
    if (weigh_tiles(t, tiles, t.scores + i * 1024, scales)) scale_values(t, scales);
    for (int d = 0; d < t.head_dim; d += 64) value_tiles(t, tiles, d);
    tiles = next;
  }
}

// The rows [row, row + rows) of an item over the tokens [begin, end); false: too few rows, or a head_dim that does not fill tiles.
// The arrays of `space` are padded to a multiple of 16 rows. Rows of others that would fill up a tile are kept out of it.
INL bool tiled_span(const ItemPages &pages, const AttendSpace &space, int row, int rows, int begin, int end) {
  const int hd = pages.args.kv.head_dim;
  if (rows < FEWEST_TILED_ROWS || hd % 32) return false;
  use_tiles(&attend_tiles);
  alignas(64) uint16_t q[16 * 256], weights[2 * 512];
  alignas(64) float scores[2 * 1024], apart[16 * 256];
  for (int last = row + rows; row < last; row += 16) {
    const int count = last - row < 16 ? last - row : 16, floats = count * hd;
    float *values = space.values + (size_t)row * hd;
    const bool alone = count == 16 || (last == space.rows && row % 16 == 0);
    TileRows t = {space, row, count, hd, alone ? values : apart, q, scores, weights};
    if (!alone) for (int i = 0; i < 16 * hd; i += 16) store(apart + i, i < floats ? load(values + i) : zero());
    attend_tile_rows(pages, t, begin, end);
    if (!alone) for (int i = 0; i < floats; i += 16) store(values + i, load(apart + i));
  }
  return true;
}

}  // namespace KVR_ISA
