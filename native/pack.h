// GGUF tensors into the layouts that the kernels read (see Weights): exactly, but for what formats.h says of K types.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace kvr {

// Rows of a GGUF matrix as they lie in the file. `type` is the file's number of the tensor type.
struct SourceMatrix {
  const uint8_t *data;
  size_t bytes;
  int type, rows, columns;
  std::string name;  // for messages
};

class Matrix {
 public:
  // Stacks the sources' rows, which must have one type and width; the last source's rows may be no multiple of 16.
  // Throws std::invalid_argument for what the kernels do not serve, and for numbers that are not finite.
  Matrix(const std::vector<SourceMatrix> &sources, ThreadPool &threads, std::shared_ptr<Arena> arena);

  const Weights &weights() const { return weights_; }
  int rows() const { return rows_; }   // outputs, without padding
  float error() const { return error_; }  // largest of a weight, relative to the largest weight of its group of 32
  size_t bytes() const { return (size_t)weights_.columns / COLUMNS * weights_.block_bytes; }

 private:
  int rows_;
  float error_;
  std::shared_ptr<Arena> arena_;  // where the weights lie
  Weights weights_;
};

const char *kind_name(Kind kind);

// Bytes of a packed matrix of tensors of this GGUF type. Throws std::invalid_argument for a type that the kernels do not serve.
PlannedBytes packed_bytes(int type, int64_t rows, int64_t columns);

}  // namespace kvr
