#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace kvr {
namespace {

struct Format {
  int type;            // as GGUF numbers it
  Kind kind;
  int block_values, block_bytes;
};

constexpr Format FORMATS[] = {{0, Kind::F32, 1, 4},      {1, Kind::F16, 1, 2},       {30, Kind::BF16, 1, 2},
                              {2, Kind::Q4, 32, 18},     {3, Kind::Q4_MIN, 32, 20},  {8, Kind::Q8, 32, 34}};

const Format &format_of(int type) {
  for (const Format &format : FORMATS)
    if (format.type == type) return format;
  throw std::invalid_argument("tensor type " + std::to_string(type) + " has no kernel");
}

// Where column n keeps the 32 integers of group g.
void put_nibbles(const uint8_t *packed, uint8_t *to, int n) {
  uint8_t q[32];
  for (int i = 0; i < 16; i++) {
    q[i] = packed[i] & 15;
    q[16 + i] = packed[i] >> 4;
  }
  for (int j = 0; j < 4; j++)
    for (int b = 0; b < 4; b++) to[64 * j + 4 * n + b] = (uint8_t)(q[8 * j + b] | q[8 * j + 4 + b] << 4);
}

void put_bytes(const uint8_t *q, uint8_t *to, int n) {
  for (int j = 0; j < 8; j++)
    for (int b = 0; b < 4; b++) to[64 * j + 4 * n + b] = q[4 * j + b] ^ 128;  // int8 plus 128
}

// One row of the file becomes column n of a packed block.
void pack_quantised(Kind kind, const uint8_t *row, int groups, uint8_t *block, int n) {
  for (int g = 0; g < groups; g++) {
    uint8_t *pair = block + (size_t)(g / 2) * pair_bytes(kind), *quants = pair + g % 2 * quant_bytes(kind);
    uint8_t *scales = pair + 2 * quant_bytes(kind) + (g % 2 * COLUMNS + n) * 2;
    std::memcpy(scales, row, 2);
    row += 2;
    if (kind == Kind::Q4_MIN) {
      std::memcpy(scales + 2 * COLUMNS * 2, row, 2);
      row += 2;
    }
    if (kind == Kind::Q8) put_bytes(row, quants, n);
    else put_nibbles(row, quants, n);
    row += kind == Kind::Q8 ? 32 : 16;
  }
}

void pack_dense(const uint8_t *row, int inputs, int bytes, uint8_t *block, int n) {
  for (int k = 0; k < inputs; k++) std::memcpy(block + (size_t)(k * COLUMNS + n) * bytes, row + (size_t)k * bytes, bytes);
}

size_t packed_block_bytes(Kind kind, int inputs) {
  const size_t groups = inputs / GROUP;
  if (kind == Kind::F32) return (size_t)inputs * COLUMNS * 4;
  if (kind == Kind::F16 || kind == Kind::BF16) return (size_t)inputs * COLUMNS * 2;
  return (groups + 1) / 2 * pair_bytes(kind);
}

}  // namespace

const char *kind_name(Kind kind) {
  constexpr const char *names[] = {"4-bit with minimum", "4-bit", "8-bit", "f16", "bf16", "f32"};
  return names[(int)kind];
}

Matrix::Matrix(const std::vector<SourceMatrix> &sources, ThreadPool &threads, std::shared_ptr<Arena> arena)
    : rows_(0), arena_(std::move(arena)) {
  if (sources.empty()) throw std::invalid_argument("a matrix needs at least one tensor");
  const Format &format = format_of(sources[0].type);
  const int inputs = sources[0].columns;
  if (inputs <= 0 || inputs % GROUP) throw std::invalid_argument("a matrix's width must be a multiple of 32");
  const size_t row_bytes = (size_t)inputs / format.block_values * format.block_bytes;
  std::vector<const uint8_t *> rows;
  for (const SourceMatrix &source : sources) {
    if (source.type != sources[0].type || source.columns != inputs)
      throw std::invalid_argument("tensors of one matrix must have one type and width");
    if (source.rows <= 0 || source.bytes != (size_t)source.rows * row_bytes) throw std::invalid_argument("a tensor's bytes do not match its shape");
    if (rows.size() % COLUMNS) throw std::invalid_argument("only the last tensor of a matrix may have rows that are no multiple of 16");
    for (int r = 0; r < source.rows; r++) rows.push_back(source.data + (size_t)r * row_bytes);
  }
  rows_ = (int)rows.size();
  const int blocks = (rows_ + COLUMNS - 1) / COLUMNS;
  const size_t block_bytes = packed_block_bytes(format.kind, inputs);
  uint8_t *data = arena_->take((size_t)blocks * block_bytes);
  weights_ = {data, block_bytes, blocks * COLUMNS, inputs, format.kind};
  Phase phase(blocks);
  threads.run([&](int) {
    phase.share(4, [&](int begin, int end) {
      for (int b = begin; b < end; b++) {
        uint8_t *block = data + (size_t)b * block_bytes;
        for (int n = 0; n < COLUMNS && b * COLUMNS + n < rows_; n++) {
          const uint8_t *row = rows[(size_t)b * COLUMNS + n];
          if (format.block_values == 32) pack_quantised(format.kind, row, inputs / GROUP, block, n);
          else pack_dense(row, inputs, format.block_bytes, block, n);
        }
      }
    });
  });
}

}  // namespace kvr
