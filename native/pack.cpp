#include "pack.h"

#include <cstring>
#include <stdexcept>

#include "formats.h"

namespace kvr {
namespace {

// What packing found in one block of columns.
struct Found {
  float error = 0;           // the largest of any group
  int not_finite = COLUMNS;  // the first column with a number that is not finite
};

// Rows of the file become the columns of one block; a block is zero before.
using PackBlock = Found (*)(const uint8_t *const *rows, int count, int inputs, uint8_t *block);

template <class T> Found pack_quantised(const uint8_t *const *rows, int count, int inputs, uint8_t *block) {
  constexpr int each = T::VALUES / GROUP;
  Found found;
  for (int g = 0; g < inputs / GROUP; g++) {
    uint8_t *pair = block + (size_t)(g / 2) * pair_bytes(T::KIND);
    uint32_t words[8][COLUMNS] = {};  // four inputs of one column
    uint16_t scales[2][COLUMNS] = {};
    for (int n = 0; n < count; n++) {
      Group group;
      group.minimum = 0;
      group.error = 0;
      T::read(rows[n] + (size_t)(g / each) * T::BYTES, g % each, group);
      for (int j = 0; j < 8; j++) std::memcpy(&words[j][n], group.quants + 4 * j, 4);
      scales[0][n] = group.scale;
      scales[1][n] = group.minimum;
      found.error = std::max(found.error, group.error);
      if (!half_is_finite(group.scale) || !half_is_finite(group.minimum)) found.not_finite = std::min(found.not_finite, n);
    }
    if (!eight_bits(T::KIND))  // low halves, then high halves
      for (int j = 0; j < 4; j++)
        for (int n = 0; n < COLUMNS; n++) words[j][n] = words[2 * j][n] | words[2 * j + 1][n] << 4;
    std::memcpy(pair + g % 2 * quant_bytes(T::KIND), words, quant_bytes(T::KIND));
    uint8_t *to = pair + 2 * quant_bytes(T::KIND) + g % 2 * sizeof scales[0];
    std::memcpy(to, scales[0], sizeof scales[0]);
    if (has_minimum(T::KIND)) std::memcpy(to + sizeof scales, scales[1], sizeof scales[1]);
  }
  return found;
}

template <class Word, Word EXPONENT> Found pack_dense(const uint8_t *const *rows, int count, int inputs, uint8_t *block) {
  Found found;
  for (int n = 0; n < count; n++) {
    bool finite = true;
    for (int k = 0; k < inputs; k++) {
      Word value;
      std::memcpy(&value, rows[n] + (size_t)k * sizeof value, sizeof value);
      std::memcpy(block + (size_t)(k * COLUMNS + n) * sizeof value, &value, sizeof value);
      finite &= (value & EXPONENT) != EXPONENT;
    }
    if (!finite) found.not_finite = std::min(found.not_finite, n);
  }
  return found;
}

struct Format {
  int type;            // as GGUF numbers it
  Kind kind;
  int values, bytes;   // of a block of the file
  PackBlock pack;
};

template <class T> constexpr Format quantised() { return {T::TYPE, T::KIND, T::VALUES, T::BYTES, pack_quantised<T>}; }

constexpr Format FORMATS[] = {
    {0, Kind::F32, 1, 4, pack_dense<uint32_t, 0x7f800000>},
    {1, Kind::F16, 1, 2, pack_dense<uint16_t, 0x7c00>},
    {30, Kind::BF16, 1, 2, pack_dense<uint16_t, 0x7f80>},
    quantised<Q4_0>(), quantised<Q4_1>(), quantised<Q5_0>(), quantised<Q5_1>(), quantised<Q8_0>(),
    quantised<Q4_K>(), quantised<Q5_K>(), quantised<Q6_K>(),
};

const Format &format_of(int type) {
  for (const Format &format : FORMATS)
    if (format.type == type) return format;
  throw std::invalid_argument("tensor type " + std::to_string(type) + " has no kernel");
}

size_t packed_block_bytes(Kind kind, int64_t inputs) {
  const size_t groups = inputs / GROUP;
  if (kind == Kind::F32) return (size_t)inputs * COLUMNS * 4;
  if (kind == Kind::F16 || kind == Kind::BF16) return (size_t)inputs * COLUMNS * 2;
  return (groups + 1) / 2 * pair_bytes(kind);
}

// Where every row of the stacked sources lies.
std::vector<const uint8_t *> stacked_rows(const std::vector<SourceMatrix> &sources, const Format &format) {
  const int inputs = sources[0].columns;
  if (inputs <= 0 || inputs % GROUP || inputs % format.values)
    throw std::invalid_argument("a matrix's width must be a multiple of 32, and of its tensor type's block");
  const size_t row_bytes = (size_t)inputs / format.values * format.bytes;
  std::vector<const uint8_t *> rows;
  for (const SourceMatrix &source : sources) {
    if (source.type != format.type || source.columns != inputs)
      throw std::invalid_argument("tensors of one matrix must have one type and width");
    if (source.rows <= 0 || source.bytes != (size_t)source.rows * row_bytes)
      throw std::invalid_argument("a tensor's bytes do not match its shape");
    if (rows.size() % COLUMNS)
      throw std::invalid_argument("only the last tensor of a matrix may have rows that are no multiple of 16");
    for (int r = 0; r < source.rows; r++) rows.push_back(source.data + (size_t)r * row_bytes);
  }
  return rows;
}

[[noreturn]] void refuse_row(const std::vector<SourceMatrix> &sources, size_t row) {
  const SourceMatrix *source = sources.data();
  for (; row >= (size_t)source->rows; source++) row -= (size_t)source->rows;
  throw std::invalid_argument(source->name + " holds a number that is not finite, or too large, in row " + std::to_string(row));
}

}  // namespace

const char *kind_name(Kind kind) {
  constexpr const char *names[] = {"4-bit with minimum", "4-bit", "8-bit with minimum", "8-bit", "f16", "bf16", "f32"};
  return names[(int)kind];
}

PlannedBytes packed_bytes(int type, int64_t rows, int64_t columns) {
  return (PlannedBytes)((rows + COLUMNS - 1) / COLUMNS) * packed_block_bytes(format_of(type).kind, columns);
}

Matrix::Matrix(const std::vector<SourceMatrix> &sources, ThreadPool &threads, std::shared_ptr<Arena> arena)
    : rows_(0), error_(0), arena_(std::move(arena)) {
  if (sources.empty()) throw std::invalid_argument("a matrix needs at least one tensor");
  const Format &format = format_of(sources[0].type);
  const std::vector<const uint8_t *> rows = stacked_rows(sources, format);
  const int inputs = sources[0].columns, blocks = (int)((rows.size() + COLUMNS - 1) / COLUMNS);
  const size_t block_bytes = packed_block_bytes(format.kind, inputs);
  uint8_t *data = arena_->take((size_t)packed_bytes(format.type, (int64_t)rows.size(), inputs));
  rows_ = (int)rows.size();
  weights_ = {data, block_bytes, blocks * COLUMNS, inputs, format.kind};
  std::vector<Found> found((size_t)blocks);
  Phase phase(blocks);
  threads.run([&](int) {
    phase.share(4, [&](int begin, int end) {
      for (int b = begin; b < end; b++)
        found[(size_t)b] = format.pack(rows.data() + (size_t)b * COLUMNS, std::min(COLUMNS, rows_ - b * COLUMNS), inputs,
                                       data + (size_t)b * block_bytes);
    });
  });
  for (int b = 0; b < blocks; b++) {
    if (found[(size_t)b].not_finite < COLUMNS) refuse_row(sources, (size_t)(b * COLUMNS + found[(size_t)b].not_finite));
    error_ = std::max(error_, found[(size_t)b].error);
  }
}

}  // namespace kvr
