// The operations of the forward pass over whole tensors: each splits its outputs among the threads.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "batch.h"
#include "cpu.h"
#include "memory.h"
#include "pack.h"
#include "threads.h"

namespace kvr {

// Matrices whose outputs lie side by side: one linear over one input.
class Projection {
 public:
  explicit Projection(std::vector<std::shared_ptr<Matrix>> parts);  // throws std::invalid_argument where the widths differ
  const std::vector<std::shared_ptr<Matrix>> &parts() const { return parts_; }
  int inputs() const { return parts_[0]->weights().inputs; }
  int outputs() const { return outputs_; }
  bool quantised() const { return quantised_; }
  bool dense() const { return dense_; }

 private:
  std::vector<std::shared_ptr<Matrix>> parts_;
  int outputs_ = 0;
  bool quantised_ = false, dense_ = false;
};

struct Normed {
  Prologue prologue;
  const float *norm;  // [inputs], for RMS_NORM
  float eps;
};

// The attention of one layer.
struct Attention {
  KVGeometry kv;
  HeadInputs heads;
  Rotary rope;
  Transform transform;
  int layer, window;
  float query_scale;
};

// What the buffers of a workspace are large enough for.
struct WorkspaceLimits {
  int threads;
  int64_t max_rows, max_inputs, query_width, group_size, heads, head_dim;
  PlannedBytes max_partials;  // a count

  int64_t item_rows() const { return item_tokens((int)group_size) * group_size; }
};

// Buffers of the forward pass that no operation leaves anything in. One per engine.
class Workspace {
 public:
  explicit Workspace(const WorkspaceLimits &limits);  // throws std::invalid_argument for limits that no kernel has
  Workspace(const Workspace &) = delete;
  Workspace &operator=(const Workspace &) = delete;
  // Of all buffers: what the constructor takes for these limits, and what this workspace has taken.
  static PlannedBytes bytes(const WorkspaceLimits &limits);
  size_t nbytes() const;

  Activations &shared() { return buffers_.shared; }
  Activations &own(int thread) { return buffers_.own[thread]; }
  float *row(int thread) { return buffers_.rows + (size_t)thread * buffers_.row_floats; }
  void *scratch(int thread) { return buffers_.scratch + (size_t)thread * buffers_.scratch_bytes; }
  float *queries() { return buffers_.queries; }
  float *partials() { return buffers_.partials; }
  int max_rows() const { return (int)limits_.max_rows; }
  int max_inputs() const { return (int)limits_.max_inputs; }
  int query_width() const { return (int)limits_.query_width; }
  size_t max_partials() const { return (size_t)limits_.max_partials; }
  int item_rows() const { return (int)limits_.item_rows(); }
  int head_dim() const { return (int)limits_.head_dim; }
  int threads() const { return limits_.threads; }

 private:
  struct Buffers {
    size_t row_floats, scratch_bytes;  // of one thread
    float *rows, *queries, *partials;
    uint8_t *scratch;
    Activations shared;
    std::vector<Activations> own;  // of each thread
  };
  // `take` is called with the bytes of every buffer, and gives its memory; or null, where the bytes are only to be added up.
  template <class Take> static Buffers carve(const WorkspaceLimits &limits, Take take);

  WorkspaceLimits limits_;
  std::vector<Region> regions_;
  Buffers buffers_;
};

class Kernels {
 public:
  // Throws std::invalid_argument for a path that is unknown or not supported, or a number of threads below 1.
  Kernels(const std::string &isa, int threads);

  const Path &path() const { return path_; }
  ThreadPool &threads() { return threads_; }

  void embed(const Matrix &table, const Batch &batch, float scale, Tensor &x);
  // The rows of x that sample, one after the other.
  void gather(const Batch &batch, const Tensor &x, Tensor &y);
  void linear(Workspace &space, const Projection &projection, const Tensor &x, int rows, const Normed &input, Tensor &y, bool accumulate);
  void attend(Workspace &space, const Batch &batch, const Attention &attention, const Tensor &qkv, Tensor &out);
  // x += rms_norm(y), for all rows of the batch.
  void add_norm(const Batch &batch, const Tensor &y, const Normed &norm, Tensor &x);

  // Measures: bytes or operations a second, seconds a fork and join.
  double read_bandwidth(size_t bytes, int repeats);
  double int8_peak();
  double float_peak();
  double fork_join_seconds();

 private:
  void multiply(const Projection &projection, const Activations &a, const Output &y, int rows, int begin, int end, void *scratch) const;

  const Path &path_;
  ThreadPool threads_;
};

}  // namespace kvr
