#include "operations.h"

#include <algorithm>
#include <stdexcept>

namespace kvr {
namespace {

constexpr int OWN_ROWS = 2;  // up to so many rows each thread quantises for itself: cheaper than waiting for each other
constexpr int ENCODE_ROWS = 4;

void require(bool condition, const char *message) {
  if (!condition) throw std::invalid_argument(message);
}

int checked_threads(int threads) {
  require(threads >= 1 && threads <= 1024, "the number of threads must be from 1 to 1024");
  return threads;
}

}  // namespace

Projection::Projection(std::vector<std::shared_ptr<Matrix>> parts) : parts_(std::move(parts)) {
  require(!parts_.empty(), "a projection needs at least one matrix");
  for (size_t i = 0; i < parts_.size(); i++) {
    const Weights &w = parts_[i]->weights();
    require(w.inputs == inputs(), "the matrices of a projection must have one width");
    require(i + 1 == parts_.size() || parts_[i]->rows() == w.columns, "only a projection's last matrix may have rows that are no multiple of 16");
    (w.kind == Kind::F16 || w.kind == Kind::BF16 || w.kind == Kind::F32 ? dense_ : quantised_) = true;
    outputs_ += w.columns;
  }
}

template <class Take> Workspace::Buffers Workspace::carve(const WorkspaceLimits &l, Take take) {
  require(l.threads > 0 && l.max_rows > 0 && l.max_inputs > 0 && l.query_width > 0 && l.group_size > 0 && l.heads > 0 && l.head_dim > 0,
          "a workspace's sizes must be positive");
  auto activations = [&](int64_t rows) {
    const PlannedBytes padded = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS, groups = l.max_inputs / GROUP + 1;
    Activations a{};
    a.quants = (int8_t *)take(padded * groups * GROUP);
    a.scale = (float *)take(padded * groups * sizeof(float));
    a.scaled_sum = (float *)take(padded * groups * sizeof(float));
    a.sum = (int32_t *)take(padded * groups * sizeof(int32_t));
    a.dense = (float *)take(padded * groups * GROUP * sizeof(float));
    return a;
  };
  Buffers b{};
  b.row_floats = (size_t)l.max_inputs + 64;
  b.scratch_bytes = std::max(attend_scratch_floats(l.item_rows(), l.head_dim) * sizeof(float), linear_scratch_bytes(l.max_inputs));
  b.scratch_bytes = (b.scratch_bytes + 4095) / 4096 * 4096;
  b.rows = (float *)take((PlannedBytes)l.threads * b.row_floats * sizeof(float));
  b.scratch = take((PlannedBytes)l.threads * b.scratch_bytes);
  b.queries = (float *)take((PlannedBytes)l.max_rows * l.query_width * sizeof(float));
  b.partials = (float *)take(l.max_partials * l.heads * (l.head_dim + 2) * sizeof(float));
  b.shared = activations(l.max_rows);
  for (int t = 0; t < l.threads; t++) b.own.push_back(activations(OWN_ROWS));
  return b;
}

Workspace::Workspace(const WorkspaceLimits &limits) : limits_(limits) {
  require(limits.head_dim <= 256, "a workspace's head_dim must be at most 256");
  buffers_ = carve(limits, [&](PlannedBytes bytes) {
    regions_.emplace_back((size_t)bytes);
    return regions_.back().data();
  });
}

PlannedBytes Workspace::bytes(const WorkspaceLimits &limits) {
  PlannedBytes total = 0;
  carve(limits, [&](PlannedBytes bytes) {
    total += bytes;
    return (uint8_t *)nullptr;
  });
  return total;
}

size_t Workspace::nbytes() const {
  size_t total = 0;
  for (const Region &region : regions_) total += region.size();
  return total;
}

Kernels::Kernels(const std::string &isa, int threads) : path_(choose_path(isa)), threads_(checked_threads(threads), path_.table) {}

void Kernels::embed(const Matrix &table, const Batch &batch, float scale, Tensor &x) {
  require(x.rows() >= batch.rows() && x.columns() >= table.weights().inputs, "the embedding's output is too small");
  require(batch.limits().vocabulary <= table.rows(), "the embedding has fewer rows than the vocabulary");
  Phase rows(batch.rows());
  threads_.run([&](int) {
    rows.share(TILE_ROWS, [&](int begin, int end) {
      path_.table->embed(table.weights(), batch.ids(), scale, x.row(0), x.stride(), begin, end);
    });
  });
}

void Kernels::gather(const Batch &batch, const Tensor &x, Tensor &y) {
  require(y.rows() >= batch.samples() && y.columns() == x.columns() && x.rows() >= batch.rows(), "the rows that sample do not fit");
  for (int i = 0; i < batch.samples(); i++) std::copy_n(x.row(batch.sample_rows()[i]), x.columns(), y.row(i));
}

void Kernels::linear(Workspace &space, const Projection &projection, const Tensor &x, int rows, const Normed &input, Tensor &y,
                     bool accumulate) {
  const bool gated = input.prologue == Prologue::SILU_MUL || input.prologue == Prologue::GELU_MUL;
  const int inputs = projection.inputs();
  require(space.threads() >= threads_.size(), "a linear has more threads than its workspace");
  require(rows > 0 && rows <= x.rows() && rows <= y.rows() && rows <= space.max_rows(), "a linear has more rows than its buffers");
  require(inputs * (gated ? 2 : 1) <= x.columns() && inputs <= space.max_inputs(), "a linear's input is narrower than its weights");
  require(projection.outputs() <= (int)y.stride(), "a linear's output is narrower than its weights");
  const RowSource source = {x.row(0), x.stride(), input.prologue, input.norm, input.eps};
  const bool own = rows <= OWN_ROWS;
  const int total = projection.outputs() / COLUMNS;
  Phase tiles(own ? 0 : (rows + TILE_ROWS - 1) / TILE_ROWS), blocks(total);
  threads_.run([&](int thread) {
    Activations a = own ? space.own(thread) : space.shared();
    a.inputs = inputs;
    auto quantize = [&](int begin, int end) {
      path_.table->quantize(source, a, begin, end, projection.dense(), projection.quantised(), space.row(thread));
    };
    if (own) quantize(0, rows);
    tiles.share(1, [&](int tile, int) { quantize(tile * TILE_ROWS, std::min(rows, (tile + 1) * TILE_ROWS)); });
    tiles.wait();
    blocks.share(std::max(1, total / (threads_.size() * 8)), [&](int begin, int end) {
      multiply(projection, a, {y.row(0), y.stride(), accumulate}, rows, begin, end, space.scratch(thread));
    });
  });
}

// Blocks [begin, end) of a projection's outputs, which may lie in several matrices.
void Kernels::multiply(const Projection &projection, const Activations &a, const Output &y, int rows, int begin, int end,
                       void *scratch) const {
  int first = 0;  // block of the matrix in hand
  for (const auto &part : projection.parts()) {
    const Weights &w = part->weights();
    const int count = w.columns / COLUMNS, from = std::max(begin, first), to = std::min(end, first + count);
    const Output out = {y.y + (size_t)first * COLUMNS, y.stride, y.accumulate};
    if (from < to) path_.table->linear(w, a, out, rows, from - first, to - first, scratch);
    first += count;
  }
}

void Kernels::attend(Workspace &space, const Batch &batch, const Attention &attention, const Tensor &qkv, Tensor &out) {
  const KVGeometry &kv = attention.kv;
  const int heads = kv.kv_heads * kv.group_size;
  require(space.threads() >= threads_.size() && space.head_dim() >= kv.head_dim, "attention has more threads or channels than its workspace");
  require(batch.rows() <= qkv.rows() && batch.rows() <= out.rows() && batch.rows() <= space.max_rows(), "attention has more rows than its buffers");
  require((heads + 2 * kv.kv_heads) * kv.head_dim <= qkv.columns() && heads * kv.head_dim <= out.columns() &&
              heads * kv.head_dim <= space.query_width(), "attention's buffers are narrower than its heads");
  const AttendPlan &plan = batch.plan();
  require(plan.partials() <= space.max_partials(), "attention has more partial results than its workspace");
  require(plan.max_item_tokens() * kv.group_size <= space.item_rows(), "attention has more rows an item than its workspace");
  const KernelTable &table = *path_.table;
  const int unit_count = (int)plan.items().size() * kv.kv_heads;
  const auto unit_at = [&](int i) { return i < unit_count ? AttendUnit{&plan.items()[i / kv.kv_heads], i % kv.kv_heads} : AttendUnit{nullptr, 0}; };
  Phase rows(batch.rows()), units(unit_count), merges((int)plan.splits().size());
  threads_.run([&](int thread) {
    const AttendArgs args = {kv, batch.step(), attention.layer, attention.transform.rotate_values, attention.window, plan.row_list(),
                             plan.spans(), space.queries(), out.row(0), out.stride(), space.partials(), plan.partial_base(),
                             (float *)space.scratch(thread)};
    rows.share(ENCODE_ROWS, [&](int begin, int end) {
      table.rotate_encode(kv, args.step, attention.heads, attention.rope, attention.transform, attention.layer, attention.query_scale, qkv.row(0),
                          qkv.stride(), space.queries(), begin, end);
    });
    rows.wait();
    units.share(1, [&](int unit, int) { table.attend(args, unit_at(unit), unit_at(unit + threads_.size())); });
    units.wait();
    merges.share(1, [&](int i, int) { table.merge(args, plan.splits()[i].row, plan.splits()[i].parts); });
  });
}

void Kernels::add_norm(const Batch &batch, const Tensor &y, const Normed &norm, Tensor &x) {
  require(batch.rows() <= y.rows() && batch.rows() <= x.rows() && y.columns() == x.columns(), "a norm's buffers have other shapes");
  Phase rows(batch.rows());
  threads_.run([&](int) {
    rows.share(TILE_ROWS, [&](int begin, int end) {
      path_.table->add_norm(y.row(0), y.stride(), norm.norm, norm.eps, x.columns(), x.row(0), x.stride(), begin, end);
    });
  });
}

}  // namespace kvr
