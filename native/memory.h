// Memory taken from the system in one mapping, and tensors in it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace kvr {

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
  float *row(int i) const { return region_.as<float>() + (size_t)i * stride_; }
  int rows() const { return rows_; }
  int columns() const { return columns_; }
  size_t stride() const { return stride_; }

 private:
  int rows_, columns_;
  size_t stride_;
  Region region_;
};

}  // namespace kvr
