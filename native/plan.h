// The attention items of one step: which rows read which pages together, and what is split among threads.
#pragma once
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace kvr {

constexpr int ITEM_TOKENS = 16;  // rows of one sequence that form an item together
constexpr int ITEM_ROWS = 64;    // (token, head) rows that several sequences bring into one item
constexpr int BLOCK_ROWS = 8;    // such rows fill the registers: an item of several sequences has a multiple of them

// The most tokens of an item where `group_size` query heads share a KV head. Bounds a thread's scratch.
constexpr int item_tokens(int group_size) {
  return ITEM_TOKENS * group_size > ITEM_ROWS ? ITEM_TOKENS : ITEM_ROWS / group_size;
}

struct PlanLimits {
  int64_t rows, sequences, positions;
  int page_size;
  int group_size;  // query heads of a KV head
  bool grouped;    // do sequences form items together where they share pages?
};

class AttendPlan {
 public:
  explicit AttendPlan(const PlanLimits &limits);
  // Of all its lists: what the constructor takes for these limits, and what this plan has taken.
  static PlannedBytes bytes(const PlanLimits &limits);
  size_t nbytes() const;
  // Results of parts that a step may have to keep until they are merged.
  static PlannedBytes max_partials(const PlanLimits &limits);

  // `step` has been checked. An item that is more than one and a half of `units_wanted` equal shares of the work is split.
  void make(const StepRows &step, int rows, int units_wanted);

  const std::vector<AttendItem> &items() const { return items_; }  // the longest first
  const AttendSpan *spans() const { return spans_.data(); }
  const int32_t *row_list() const { return row_list_.data(); }
  const int32_t *partial_base() const { return partial_base_.data(); }

  struct Split { int32_t row, parts; };
  const std::vector<Split> &splits() const { return splits_; }  // rows whose parts are merged after all items
  size_t partials() const { return partials_; }
  size_t max_partials() const { return max_partials_; }
  int max_item_tokens() const { return item_tokens(limits_.group_size); }

  // Tiles of 32 keys and as many values that the items read, for each KV head of a layer with this window.
  size_t tiles_read(const StepRows &step, int window) const;

 private:
  // Up to ITEM_TOKENS rows of one sequence that stand together.
  struct Run {
    int32_t row, count, seq;
    int32_t limit;   // the positions that its rows see lie below
    int32_t shared;  // steps of 64 tokens that lie in the same pages as those of the run before
    int32_t first;   // its place in the row list
  };
  struct Block { int32_t begin, end; };  // runs of one item

  // Calls `visit` with every list, as a pointer to member, and the entries that it needs room for.
  template <class Visit> static void lists(const PlanLimits &limits, Visit visit);
  void find_runs(const StepRows &step, int rows);
  void order_runs(const StepRows &step);
  void cut_blocks(int units_wanted);
  void cut_family(int begin, int end, int blocks);
  int item_size(int all, int blocks) const;
  int tokens_of(int begin, int end) const;
  void add_block(int begin, int end);
  void add_item(const Block &block, int part_begin, int part_end, bool split);
  void add_spans(int begin, int end, int from, int to, int first);
  void split_block(const StepRows &step, const Block &block);
  size_t partials_of(const StepRows &step, const Block &block) const;

  PlanLimits limits_;
  size_t partials_ = 0, max_partials_, small_ = 0;  // runs from `small_` on may form items with others
  std::vector<int32_t> row_list_, partial_base_;
  std::vector<Run> runs_;
  std::vector<Block> blocks_;
  std::vector<AttendItem> items_;
  std::vector<AttendSpan> spans_;
  std::vector<Split> splits_;
};

}  // namespace kvr
