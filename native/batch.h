// The rows of one step, checked, and the attention items that follow from them.
#pragma once
#include <vector>

#include "kernels.h"

namespace kvr {

// What a step may hold; everything of a Batch is allocated for this at the start.
struct BatchLimits {
  int rows, samples, sequences, table_pages;  // tokens, sampled tokens and sequences of a step, pages of a sequence
  int page_size, num_pages, vocabulary, positions;
};

// Tokens of one sequence that form an item together in prefill. Bounds an attention item's rows to this times the group size.
constexpr int ITEM_TOKENS = 16;

class Batch {
 public:
  explicit Batch(const BatchLimits &limits);

  // ids, positions, row_seq: [rows]; tables: [sequences][width]; kv_len: [sequences]; sample_rows: [samples].
  // Throws std::invalid_argument where a value would make a kernel read or write out of bounds.
  void load(const int32_t *ids, const int32_t *positions, const int32_t *row_seq, int rows, const int32_t *tables, int width,
            const int32_t *kv_len, int sequences, const int32_t *sample_rows, int samples, int units_wanted);

  int rows() const { return rows_; }
  int samples() const { return samples_; }
  const int32_t *sample_rows() const { return sample_rows_.data(); }
  const int32_t *ids() const { return ids_.data(); }
  StepRows step() const { return {positions_.data(), row_seq_.data(), tables_.data(), kv_len_.data(), limits_.table_pages}; }
  const std::vector<AttendItem> &items() const { return items_; }
  const int32_t *row_list() const { return row_list_.data(); }
  const int32_t *partial_base() const { return partial_base_.data(); }

  struct Split { int32_t row, parts; };
  const std::vector<Split> &splits() const { return splits_; }  // rows whose parts are merged after all items
  const BatchLimits &limits() const { return limits_; }
  size_t partials() const { return partials_; }

 private:
  void check(int sequences, int width) const;
  void plan(int units_wanted);
  void plan_sequence(int first, int count, bool split);

  BatchLimits limits_;
  int rows_ = 0, samples_ = 0;
  size_t partials_ = 0;
  std::vector<int32_t> ids_, positions_, row_seq_, tables_, kv_len_, row_list_, partial_base_, sample_rows_;
  std::vector<AttendItem> items_;
  std::vector<Split> splits_;
};

}  // namespace kvr
