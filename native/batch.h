// The rows of one step, checked; the attention items that follow from them are in its plan.
#pragma once
#include <vector>

#include "plan.h"

namespace kvr {

// What a step may hold; everything of a Batch is allocated for this at the start.
struct BatchLimits {
  int64_t rows, samples, sequences, table_pages;  // tokens, sampled tokens and sequences of a step, pages of a sequence
  int page_size, num_pages, vocabulary;
  int64_t positions;
  int group_size;   // query heads of a KV head
  bool grouped;     // do sequences form items together where they share pages?
};

class Batch {
 public:
  explicit Batch(const BatchLimits &limits);
  // Of all its arrays, the plan's included: what the constructor takes for these limits, and what this batch has taken.
  static PlannedBytes bytes(const BatchLimits &limits);
  size_t nbytes() const;

  // ids, positions, row_seq: [rows]; tables: [sequences][width]; kv_len: [sequences]; sample_rows: [samples].
  // Throws std::invalid_argument where a value would make a kernel read or write out of bounds.
  void load(const int32_t *ids, const int32_t *positions, const int32_t *row_seq, int rows, const int32_t *tables, int width,
            const int32_t *kv_len, int sequences, const int32_t *sample_rows, int samples, int units_wanted);

  int rows() const { return rows_; }
  int samples() const { return samples_; }
  const int32_t *sample_rows() const { return sample_rows_.data(); }
  const int32_t *ids() const { return ids_.data(); }
  StepRows step() const { return {positions_.data(), row_seq_.data(), tables_.data(), kv_len_.data(), (int)limits_.table_pages}; }
  const AttendPlan &plan() const { return plan_; }
  size_t tiles_read(int window) const { return plan_.tiles_read(step(), window); }
  const BatchLimits &limits() const { return limits_; }

 private:
  // Calls `visit` with every array, as a pointer to member, and its length.
  template <class Visit> static void arrays(const BatchLimits &limits, Visit visit);
  void check(int sequences, int width) const;

  BatchLimits limits_;
  int rows_ = 0, samples_ = 0;
  std::vector<int32_t> ids_, positions_, row_seq_, tables_, kv_len_, sample_rows_;
  AttendPlan plan_;
};

}  // namespace kvr
