#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace kvr {

Region::Region(size_t bytes, bool huge) : size_(bytes) {
  constexpr size_t HUGE_PAGE = 2u << 20;
  const size_t align = huge ? HUGE_PAGE : 64;
  mapped_ = bytes + (huge ? HUGE_PAGE : 0);
  if (mapped_ == 0) mapped_ = 64;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = reinterpret_cast<uint8_t *>(((uintptr_t)mapping_ + align - 1) / align * align);
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data_, bytes, MADV_HUGEPAGE);  // advice: a system without huge pages is slower, not wrong
#endif
}

Region::~Region() {
  if (mapping_) munmap(mapping_, mapped_);
}

Region::Region(Region &&other) noexcept { *this = std::move(other); }

Region &Region::operator=(Region &&other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(size_, other.size_);
  std::swap(data_, other.data_);
  return *this;
}

uint8_t *Arena::take(size_t bytes) {
  constexpr size_t LEAST = 64u << 20;  // untouched pages of a mapping cost nothing
  bytes = (bytes + 63) / 64 * 64;
  if (regions_.empty() || regions_.back().size() - used_ < bytes) {
    regions_.emplace_back(bytes > LEAST ? bytes : LEAST, true);
    used_ = 0;
  }
  used_ += bytes;
  return regions_.back().data() + used_ - bytes;
}

Tensor::Tensor(int rows, int columns)
    : rows_(rows), columns_(columns), stride_(stride_of(columns)), region_((size_t)bytes(rows, columns)) {}

}  // namespace kvr
