// What an instruction-set unit offers to the rest: one table of functions over plain structs.
//
// Functions marked (range) compute a part of an operation's outputs; any split over threads gives the same bits.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace kvr {

constexpr int GROUP = 32;        // inputs that share a weight scale, and an activation scale
constexpr int COLUMNS = 16;      // output columns of one packed block
constexpr int TILE_ROWS = 16;    // rows of one tile of quantised activations
constexpr int TILE_TOKENS = 32;  // tokens of one tile of keys or values in a page
constexpr int STEP_TOKENS = 64;  // tokens of one softmax step
constexpr int PART_TOKENS = 512; // tokens whose partial result is kept apart, then merged in ascending order

enum class Kind : int { Q4_MIN, Q4, Q8_MIN, Q8, F16, BF16, F32 };

constexpr bool eight_bits(Kind kind) { return kind == Kind::Q8 || kind == Kind::Q8_MIN; }
constexpr bool has_minimum(Kind kind) { return kind == Kind::Q4_MIN || kind == Kind::Q8_MIN; }

// Weights of `columns` outputs (a multiple of COLUMNS) over `inputs` inputs, packed in blocks of COLUMNS outputs.
// Quantised: [block][pair of groups]{quants of both, [2][COLUMNS] fp16 scales, and where there are any [2][COLUMNS] fp16 minima}:
// one stream of whole cache lines, read in order. With an odd number of groups the last pair is half empty. A weight is
// scale * q + minimum. Of Q4 q + 8 is stored, of eight bits q + 128.
// Dense: [block][input][COLUMNS] values.
struct Weights {
  const uint8_t *data;
  size_t block_bytes;
  int columns, inputs;
  Kind kind;
};

// Rows quantised to int8 in groups: [row tile][group][TILE_ROWS][GROUP], and per [row tile][group][TILE_ROWS] a scale,
// the scale times the sum of the int8 values, and that sum.
struct Activations {
  int8_t *quants;
  float *scale, *scaled_sum;
  int32_t *sum;
  float *dense;  // [row][inputs]: the rows before quantisation, for weights that are not quantised; may be null
  int inputs;
};

enum class Prologue : int { PLAIN, RMS_NORM, SILU_MUL, GELU_MUL };

// How rows become activations: row i of `x` (for SILU_MUL and GELU_MUL its first 2 * inputs values: gate, then up).
struct RowSource {
  const float *x;
  size_t stride;
  Prologue prologue;
  const float *norm;
  float eps;
};

struct Output {
  float *y;       // row i starts at y + i * stride
  size_t stride;
  bool accumulate;
};

// How one head's keys or values of a layer are stored.
enum class Codec : int { BF16, INT8, INT4 };

constexpr int CHANNEL_GROUP = 64;  // channels of a 4-bit row that share a scale and a minimum

// Bytes of one token's keys or values of a head.
inline constexpr size_t row_bytes(Codec codec, bool value, size_t head_dim) {
  const size_t groups = (head_dim + CHANNEL_GROUP - 1) / CHANNEL_GROUP;
  if (codec == Codec::BF16) return 2 * head_dim;
  if (codec == Codec::INT8) return head_dim + 4;
  return (value ? (head_dim + 31) / 32 * 16 : head_dim / 2) + 4 * groups;
}

// One head's keys or values of a layer in a page.
struct Plane {
  size_t offset;      // in the page, bytes
  size_t tile_bytes;  // of 32 tokens
  Codec codec;
  float step;         // a row's largest magnitude (8 bits) or range (4 bits) times this is its scale
  float shrink;       // 4 bits: the range begins this share of it above the smallest value
};

inline Plane plane_at(size_t offset, Codec codec, bool value, size_t head_dim, double clip) {
  return {offset, TILE_TOKENS * row_bytes(codec, value, head_dim), codec, (float)(clip / (codec == Codec::INT4 ? 15 : 127)),
          (float)((1 - clip) / 2)};
}

// Geometry of the pool, see KVLayout. Bytes.
struct KVGeometry {
  uint8_t *pool;
  const Plane *planes;  // [layer][keys, values][kv head]
  size_t page_bytes;
  int page_size, kv_heads, group_size, head_dim;

  const Plane &plane(int layer, bool value, int head) const { return planes[((size_t)layer * 2 + value) * kv_heads + head]; }
};

// What happens to rotated keys, to queries and to values before they are stored or used. Scores and outputs stay what they are,
// up to rounding: softmax does not see a constant in all keys, and what is done to keys is undone on queries. Null: nothing.
struct Transform {
  const float *constant;        // [kv head][head_dim]: subtracted from keys
  const float *scale, *inverse; // [kv head][head_dim]: queries times scale, keys times its inverse
  bool rotate_keys, rotate_values;  // by a block Hadamard matrix
};

// What happens to a row's queries, keys and values before they are rotated. Null: nothing.
struct HeadInputs {
  const float *bias;            // [queries | keys | values]
  const float *q_norm, *k_norm; // [head_dim]: RMS norm of every head
  float eps;
};

struct Rotary {
  const float *cosines, *sines;  // [position][dims / 2]
  int dims;
  bool interleaved;
};

// The rows of a step. `tables` is [sequence][table_stride].
struct StepRows {
  const int32_t *positions, *row_seq, *tables, *kv_len;
  int table_stride;
};

// Rows of an item, and tokens that all of them find in the same pages.
struct AttendSpan {
  int32_t first, count;  // token rows, counted from the item's first
  int32_t seq;           // whose table names the pages
  int32_t begin, end;    // positions, from a step's first on; of these a row sees those below its limit
};

// Token rows that one thread takes through some parts together, for one KV head.
struct AttendItem {
  int32_t first, count;          // row_list[first .. first + count)
  int32_t span_begin, span_end;  // what they read; those of one row in ascending position
  int32_t part_begin, part_end;
  int32_t split;                 // 1: the only part's results go to the partials, for a later merge
  int32_t work;                  // about as long as it takes
};

// What a thread takes at a time.
struct AttendUnit {
  const AttendItem *item;  // null: none
  int kv_head;
};

struct AttendArgs {
  KVGeometry kv;
  StepRows step;
  int layer;
  bool rotated_values;   // the output is to be rotated back
  int window;            // last positions that a row sees, its own included; 0: all
  const int32_t *row_list;
  const AttendSpan *spans;
  const float *queries;  // [row][heads * head_dim], rotated, scaled; bf16-valued where the keys are bf16
  float *out;            // [row], out_stride
  size_t out_stride;
  float *partials;       // [row's first partial + part][heads][head_dim + 2]: values, max, sum
  const int32_t *partial_base;  // [row]: index of its first partial
  float *scratch;        // this thread's, attend_scratch_floats() of them
};

struct KernelTable {
  const char *name;
  void (*quantize)(const RowSource &, Activations &, int row_begin, int row_end, bool dense, bool quantised, float *scratch);
  void (*linear)(const Weights &, const Activations &, const Output &, int rows, int block_begin, int block_end, void *scratch);
  void (*embed)(const Weights &, const int32_t *ids, float scale, float *x, size_t stride, int row_begin, int row_end);
  void (*rotate_encode)(const KVGeometry &, const StepRows &, const HeadInputs &, const Rotary &, const Transform &, int layer,
                        float query_scale, const float *qkv, size_t qkv_stride, float *queries, int row_begin, int row_end);
  void (*attend)(const AttendArgs &, AttendUnit, AttendUnit later);
  void (*merge)(const AttendArgs &, int row, int parts);
  void (*add_norm)(const float *y, size_t y_stride, const float *norm, float eps, int n, float *x, size_t x_stride, int row_begin,
                   int row_end);  // x += rms_norm(y)
  double (*read_bytes)(const uint8_t *, size_t);       // sums a buffer: for measuring bandwidth
  double (*multiply_int8)(int64_t iterations);         // returns operations done: for measuring peaks
  double (*multiply_float)(int64_t iterations);
  uint64_t (*thread_start)();                          // before kernels run on a thread: denormals flushed, tiles free
  void (*thread_stop)(uint64_t);                       // after: what thread_start returned is restored
};

// Scratch of one thread: for items of up to `rows` (token, head) rows, and for linears of up to `inputs` inputs.
inline constexpr size_t attend_scratch_floats(size_t rows, size_t head_dim) {
  return (rows + 15) / 16 * 16 * (3 * head_dim + 16 + 5) + 16 * STEP_TOKENS + head_dim * TILE_TOKENS / 2;
}
inline constexpr size_t quant_bytes(Kind kind) { return eight_bits(kind) ? 512 : 256; }  // of one group
inline constexpr size_t pair_bytes(Kind kind) { return 2 * quant_bytes(kind) + (has_minimum(kind) ? 128 : 64); }
inline constexpr size_t linear_scratch_bytes(size_t inputs) { return inputs / GROUP * (512 + 2 * 64) + 4096; }

const KernelTable *portable_kernels();
const KernelTable *avx2_kernels();
const KernelTable *avx2_vnni_kernels();
const KernelTable *avx512_kernels();
const KernelTable *amx_kernels();
const KernelTable *amx_sim_kernels();

}  // namespace kvr
