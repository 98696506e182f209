#include "plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvr {
namespace {

constexpr int PART_STEPS = PART_TOKENS / STEP_TOKENS;
constexpr int FEWEST_GROUPED = 4;  // an item of several sequences is filled to a quarter at least, before there are more items
constexpr int WORTH = 8;           // sequences form items together where they share this fraction of their tokens

template <class Int> Int parts_of(Int tokens) { return (tokens + PART_TOKENS - 1) / PART_TOKENS; }

const int32_t *table_of(const StepRows &step, int seq) { return step.tables + (size_t)seq * step.table_stride; }

// Entries that two tables have in common before they part.
int common(const int32_t *a, const int32_t *b, int count) {
  constexpr int AT_ONCE = 32;
  int i = 0;
  while (i + AT_ONCE <= count && !std::memcmp(a + i, b + i, AT_ONCE * sizeof(int32_t))) i += AT_ONCE;
  while (i < count && a[i] == b[i]) i++;
  return i;
}

}  // namespace

PlannedBytes AttendPlan::max_partials(const PlanLimits &limits) { return (PlannedBytes)limits.sequences * parts_of(limits.positions); }

template <class Visit> void AttendPlan::lists(const PlanLimits &limits, Visit visit) {
  const PlannedBytes rows = limits.rows, items = rows + max_partials(limits);
  visit(&AttendPlan::row_list_, rows);
  visit(&AttendPlan::partial_base_, rows);
  visit(&AttendPlan::runs_, rows);
  visit(&AttendPlan::blocks_, rows);
  visit(&AttendPlan::splits_, rows);
  visit(&AttendPlan::items_, items);
  visit(&AttendPlan::spans_, 2 * items);
}

AttendPlan::AttendPlan(const PlanLimits &limits) : limits_(limits), max_partials_((size_t)max_partials(limits)) {
  lists(limits, [&](auto list, PlannedBytes room) { (this->*list).reserve((size_t)room); });
  row_list_.resize(limits.rows);
  partial_base_.resize(limits.rows);
}

PlannedBytes AttendPlan::bytes(const PlanLimits &limits) {
  PlannedBytes total = 0;
  lists(limits, [&]<class T>(std::vector<T> AttendPlan::*, PlannedBytes room) { total += room * sizeof(T); });
  return total;
}

size_t AttendPlan::nbytes() const {
  size_t total = 0;
  lists(limits_, [&]<class T>(std::vector<T> AttendPlan::*list, PlannedBytes) { total += (this->*list).capacity() * sizeof(T); });
  return total;
}

void AttendPlan::make(const StepRows &step, int rows, int units_wanted) {
  items_.clear();
  spans_.clear();
  splits_.clear();
  partials_ = 0;
  find_runs(step, rows);
  if (limits_.grouped) order_runs(step);
  cut_blocks(units_wanted);
  int64_t work = 0;
  for (const Block &block : blocks_) {
    int limit = 0;
    for (int i = block.begin; i < block.end; i++) limit = std::max(limit, runs_[i].limit);
    add_item(block, 0, parts_of(limit), false);
    work += items_.back().work;
  }
  for (size_t i = 0; i < blocks_.size(); i++) {
    const bool large = 2 * (int64_t)items_[i].work * units_wanted > 3 * work && items_[i].part_end > 1;
    if (!large || partials_ + partials_of(step, blocks_[i]) > max_partials_) continue;
    split_block(step, blocks_[i]);
    items_[i].count = 0;
  }
  std::erase_if(items_, [](const AttendItem &item) { return item.count == 0; });
  std::sort(items_.begin(), items_.end(), [&](const AttendItem &a, const AttendItem &b) {
    return a.work != b.work ? a.work > b.work : row_list_[a.first] < row_list_[b.first];
  });
}

// Whole runs first, then the small ones.
void AttendPlan::find_runs(const StepRows &step, int rows) {
  runs_.clear();
  for (const bool whole : {true, false}) {
    small_ = runs_.size();
    for (int row = 0, end; row < rows; row = end) {
      int limit = 0;
      for (end = row; end < rows && end - row < ITEM_TOKENS && step.row_seq[end] == step.row_seq[row]; end++)
        limit = std::max(limit, step.positions[end] + 1);
      if ((end - row == ITEM_TOKENS) == whole) runs_.push_back({row, end - row, step.row_seq[row], limit, 0, 0});
    }
  }
}

// Brings small runs whose tables begin alike side by side, and counts what each shares with the one before. Equal page ids are
// all that is asked: any two pages of one id hold the same keys and values.
void AttendPlan::order_runs(const StepRows &step) {
  const auto before = [&](const Run &a, const Run &b) {
    const int pages_a = a.limit / limits_.page_size, pages_b = b.limit / limits_.page_size;
    const int order = std::memcmp(table_of(step, a.seq), table_of(step, b.seq), std::min(pages_a, pages_b) * sizeof(int32_t));
    return order ? order < 0 : pages_a != pages_b ? pages_a < pages_b : a.row < b.row;
  };
  std::sort(runs_.begin() + small_, runs_.end(), before);
  for (size_t i = small_ + 1; i < runs_.size(); i++) {
    const Run &a = runs_[i - 1], &b = runs_[i];
    const int pages = std::min(a.limit, b.limit) / limits_.page_size;
    runs_[i].shared = common(table_of(step, a.seq), table_of(step, b.seq), pages) * limits_.page_size / STEP_TOKENS;
  }
}

int AttendPlan::tokens_of(int begin, int end) const {
  int tokens = 0;
  for (int i = begin; i < end; i++) tokens += runs_[i].count;
  return tokens;
}

// Families of runs that share enough are cut into blocks of about one size: as many as are wanted, but well filled.
void AttendPlan::cut_blocks(int units_wanted) {
  blocks_.clear();
  int row = 0;
  int64_t all = 0;
  const auto work = [](const Run &run) { return (int64_t)run.count * run.limit; };
  for (Run &run : runs_) {
    run.first = row;
    for (int i = 0; i < run.count; i++) row_list_[row++] = run.row + i;
    all += work(run);
  }
  for (size_t i = 0; i < small_; i++) blocks_.push_back({(int)i, (int)i + 1});
  for (int begin = (int)small_, end; begin < (int)runs_.size(); begin = end) {
    int64_t mine = work(runs_[begin]);
    for (end = begin + 1; end < (int)runs_.size() && (int64_t)runs_[end].shared * STEP_TOKENS * WORTH >= runs_[end].limit; end++)
      mine += work(runs_[end]);
    const int tokens = tokens_of(begin, end), most = max_item_tokens(), fewest = std::max(1, most / FEWEST_GROUPED);
    const int wanted = (int)((mine * units_wanted + all - 1) / all);
    cut_family(begin, end, std::max((tokens + most - 1) / most, std::min(tokens / fewest, wanted)));
  }
}

// Tokens of an item, where `all` of them would make `blocks` even ones: rather so many that their rows fill the registers of the
// kernel, unless that leaves few items, of which one is smaller.
int AttendPlan::item_size(int all, int blocks) const {
  const int even = (all + blocks - 1) / blocks, step = BLOCK_ROWS / std::gcd(BLOCK_ROWS, limits_.group_size);
  const int full = std::min((even + step - 1) / step, max_item_tokens() / step) * step;
  return all % full == 0 || all >= 3 * full ? full : even;
}

void AttendPlan::cut_family(int begin, int end, int blocks) {
  const int target = item_size(tokens_of(begin, end), blocks);
  while (begin < end) {
    int cut = begin, tokens = 0;
    do tokens += runs_[cut++].count;
    while (cut < end && tokens + runs_[cut].count <= target);
    blocks_.push_back({begin, cut});
    begin = cut;
  }
}

void AttendPlan::add_item(const Block &block, int part_begin, int part_end, bool split) {
  AttendItem item = {runs_[block.begin].first, tokens_of(block.begin, block.end), (int32_t)spans_.size(), 0, part_begin, part_end, split, 0};
  add_spans(block.begin, block.end, part_begin * PART_STEPS, part_end * PART_STEPS, item.first);
  item.span_end = (int32_t)spans_.size();
  for (int i = item.span_begin; i < item.span_end; i++) item.work += (spans_[i].end - spans_[i].begin) * (spans_[i].count + 1);
  items_.push_back(item);
}

// The steps [from, to) of the runs [begin, end), which share a step at least: what all of them share, then the branches.
void AttendPlan::add_spans(int begin, int end, int from, int to, int first) {
  const Run &run = runs_[begin];
  if (end - begin == 1) {
    const int last = std::min(to * STEP_TOKENS, run.limit);
    if (from * STEP_TOKENS < last) spans_.push_back({run.first - first, run.count, run.seq, from * STEP_TOKENS, last});
    return;
  }
  int shared = to;
  for (int i = begin + 1; i < end; i++) shared = std::min(shared, runs_[i].shared);
  spans_.push_back({run.first - first, tokens_of(begin, end), run.seq, from * STEP_TOKENS, shared * STEP_TOKENS});
  if (shared == to) return;
  for (int i = begin, next; i < end; i = next) {
    for (next = i + 1; next < end && runs_[next].shared > shared; next++) {}
    add_spans(i, next, shared, to, first);
  }
}

size_t AttendPlan::partials_of(const StepRows &step, const Block &block) const {
  size_t partials = 0;
  for (int i = block.begin; i < block.end; i++)
    for (int r = 0; r < runs_[i].count; r++) partials += parts_of(step.positions[runs_[i].row + r] + 1);
  return partials;
}

// One item for each part and all runs that share a step of it.
void AttendPlan::split_block(const StepRows &step, const Block &block) {
  int parts = 0;
  for (int i = block.begin; i < block.end; i++)
    for (int row = runs_[i].row; row < runs_[i].row + runs_[i].count; row++) {
      const int mine = parts_of(step.positions[row] + 1);
      partial_base_[row] = (int32_t)partials_;
      partials_ += mine;
      splits_.push_back({row, mine});
      parts = std::max(parts, mine);
    }
  for (int part = 0; part < parts; part++)
    for (int i = block.begin, next; i < block.end; i = next) {
      for (next = i + 1; next < block.end && runs_[next].shared > part * PART_STEPS; next++) {}
      if (runs_[i].limit > part * PART_TOKENS) add_item({i, next}, part, part + 1, true);
    }
}

size_t AttendPlan::tiles_read(const StepRows &step, int window) const {
  size_t tiles = 0;
  for (const AttendItem &item : items_)
    for (int i = item.span_begin; i < item.span_end; i++) {
      const AttendSpan &span = spans_[i];
      const int32_t *rows = row_list_.data() + item.first + span.first;
      int end = 0;
      for (int r = 0; r < span.count; r++) end = std::max(end, step.positions[rows[r]] + 1);
      end = std::min(end, span.end);
      const auto seen = [&](int t0) {
        return std::any_of(rows, rows + span.count, [&](int row) {
          return step.positions[row] >= t0 && step.positions[row] - window + 1 < t0 + STEP_TOKENS;
        });
      };
      if (!window) tiles += (std::max(end - span.begin, 0) + TILE_TOKENS - 1) / TILE_TOKENS;
      else for (int t0 = span.begin; t0 < end; t0 += STEP_TOKENS) tiles += seen(t0) ? 1 + (t0 + TILE_TOKENS < end) : 0;
    }
  return tiles;
}

}  // namespace kvr
