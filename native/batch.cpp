#include "batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvr {
namespace {

[[noreturn]] void refuse(const std::string &what, int64_t value, int64_t limit) {
  throw std::invalid_argument(what + " is " + std::to_string(value) + ", the limit is " + std::to_string(limit));
}

void bound(const char *what, int64_t value, int64_t limit) {
  if (value < 0 || value >= limit) refuse(what, value, limit);
}

PlanLimits plan_limits(const BatchLimits &l) { return {l.rows, l.sequences, l.positions, l.page_size, l.group_size, l.grouped}; }

}  // namespace

template <class Visit> void Batch::arrays(const BatchLimits &limits, Visit visit) {
  for (auto array : {&Batch::ids_, &Batch::positions_, &Batch::row_seq_}) visit(array, limits.rows);
  visit(&Batch::tables_, (PlannedBytes)limits.sequences * limits.table_pages);
  visit(&Batch::kv_len_, limits.sequences);
  visit(&Batch::sample_rows_, limits.samples);
}

Batch::Batch(const BatchLimits &limits) : limits_(limits), plan_(plan_limits(limits)) {
  arrays(limits, [&](auto array, PlannedBytes length) { (this->*array).resize((size_t)length); });
}

PlannedBytes Batch::bytes(const BatchLimits &limits) {
  PlannedBytes total = AttendPlan::bytes(plan_limits(limits));
  arrays(limits, [&](auto, PlannedBytes length) { total += length * sizeof(int32_t); });
  return total;
}

size_t Batch::nbytes() const {
  size_t total = plan_.nbytes();
  arrays(limits_, [&](auto array, PlannedBytes) { total += (this->*array).capacity() * sizeof(int32_t); });
  return total;
}

void Batch::load(const int32_t *ids, const int32_t *positions, const int32_t *row_seq, int rows, const int32_t *tables, int width,
                 const int32_t *kv_len, int sequences, const int32_t *sample_rows, int samples, int units_wanted) {
  if (rows < 1 || rows > limits_.rows) refuse("the number of rows", rows, limits_.rows);
  if (sequences < 1 || sequences > limits_.sequences) refuse("the number of sequences", sequences, limits_.sequences);
  if (width < 1 || width > limits_.table_pages) refuse("the width of the tables", width, limits_.table_pages);
  if (samples < 0 || samples > limits_.samples) refuse("the number of rows that sample", samples, limits_.samples);
  rows_ = rows;
  samples_ = samples;
  std::copy(sample_rows, sample_rows + samples, sample_rows_.begin());
  std::copy(ids, ids + rows, ids_.begin());
  std::copy(positions, positions + rows, positions_.begin());
  std::copy(row_seq, row_seq + rows, row_seq_.begin());
  std::copy(kv_len, kv_len + sequences, kv_len_.begin());
  for (int s = 0; s < sequences; s++) std::copy(tables + (size_t)s * width, tables + (size_t)(s + 1) * width, tables_.begin() + (size_t)s * limits_.table_pages);
  check(sequences, width);
  plan_.make(step(), rows_, units_wanted);
}

void Batch::check(int sequences, int width) const {
  for (int s = 0; s < sequences; s++) {
    bound("a sequence's length in the cache", kv_len_[s], std::min<int64_t>(limits_.positions, (int64_t)width * limits_.page_size) + 1);
    const int pages = (kv_len_[s] + limits_.page_size - 1) / limits_.page_size;
    for (int p = 0; p < pages; p++) bound("a page id", tables_[(size_t)s * limits_.table_pages + p], limits_.num_pages);
  }
  for (int r = 0; r < rows_; r++) {
    bound("a token id", ids_[r], limits_.vocabulary);
    bound("a row's sequence", row_seq_[r], sequences);
    bound("a position", positions_[r], kv_len_[row_seq_[r]]);
  }
  for (int s = 0; s < samples_; s++) bound("a row that samples", sample_rows_[s], rows_);
}

}  // namespace kvr
