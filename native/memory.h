// Memory taken from the system in one mapping, and tensors in it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace kvr {

// Bytes of buffers that are planned before they are taken, if ever: wide enough for any product of limits.
using PlannedBytes = unsigned __int128;

// An anonymous mapping, zero until written, 64-byte aligned; 2 MiB aligned with huge pages advised where `huge`.
class Region {
 public:
  Region() = default;
  explicit Region(size_t bytes, bool huge = false);  // throws std::bad_alloc
  ~Region();
  Region(Region &&other) noexcept;
  Region &operator=(Region &&other) noexcept;

  uint8_t *data() const { return data_; }
  size_t size() const { return size_; }
  template <class T> T *as() const { return reinterpret_cast<T *>(data_); }

 private:
  void *mapping_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
  uint8_t *data_ = nullptr;
};

// Hands out pieces of large mappings, so that matrices smaller than a huge page share them.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  // Zeroed, 64-byte aligned; it lives as long as the arena.
  uint8_t *take(size_t bytes);

 private:
  std::vector<Region> regions_;
  size_t used_ = 0;  // of the last region
};

// Rows of fp32. The stride avoids multiples of 4 KiB, at which all rows would meet in one set of the first-level cache.
class Tensor {
 public:
  Tensor(int rows, int columns);
  static PlannedBytes bytes(int64_t rows, int64_t columns) { return (PlannedBytes)rows * stride_of(columns) * sizeof(float) + 64; }
  size_t nbytes() const { return region_.size(); }
  float *row(int i) const { return region_.as<float>() + (size_t)i * stride_; }
  int rows() const { return rows_; }
  int columns() const { return columns_; }
  size_t stride() const { return stride_; }

 private:
  static size_t stride_of(int64_t columns) { return columns % 1024 == 0 ? columns + 16 : (columns + 15) / 16 * 16; }

  int rows_, columns_;
  size_t stride_;
  Region region_;
};

}  // namespace kvr
