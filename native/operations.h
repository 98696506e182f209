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

// Buffers of the forward pass that no operation leaves anything in. One per engine.
class Workspace {
 public:
  Workspace(int threads, int max_rows, int max_inputs, int query_width, int group_size, int heads, int head_dim, size_t max_partials);

  Activations &shared() { return shared_; }
  Activations &own(int thread) { return own_[thread]; }
  float *row(int thread) { return rows_.as<float>() + (size_t)thread * row_floats_; }
  void *scratch(int thread) { return scratch_.data() + (size_t)thread * scratch_bytes_; }
  float *queries() { return queries_.as<float>(); }
  float *partials() { return partials_.as<float>(); }
  int max_rows() const { return max_rows_; }
  int max_inputs() const { return max_inputs_; }
  int query_width() const { return query_width_; }
  size_t max_partials() const { return max_partials_; }
  int item_rows() const { return item_rows_; }
  int head_dim() const { return head_dim_; }
  int threads() const { return (int)own_.size(); }

 private:
  Activations activations(int rows, std::vector<Region> &regions) const;

  int max_rows_, max_inputs_, query_width_, head_dim_, item_rows_;
  size_t max_partials_, row_floats_, scratch_bytes_;
  std::vector<Region> regions_;
  Region rows_, scratch_, queries_, partials_;
  Activations shared_;
  std::vector<Activations> own_;
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
