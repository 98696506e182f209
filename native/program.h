// A forward pass written down once: its operations in order, run over whatever rows the batch holds.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "operations.h"

namespace kvr {

class Program {
 public:
  // All three must outlive the program.
  Program(Kernels &kernels, Workspace &space, Batch &batch) : kernels_(kernels), space_(space), batch_(batch) {}

  void embed(const Matrix &table, float scale, Tensor &x);
  // Over all rows, or over those that sample; `name` is what its time is kept under.
  void linear(const std::string &name, const Projection &projection, const Tensor &x, const Normed &input, Tensor &y, bool accumulate,
              bool sampled);
  void attend(const Attention &attention, const Tensor &qkv, Tensor &out);
  void add_norm(const Tensor &y, const Normed &norm, Tensor &x);
  void gather(const Tensor &x, Tensor &y);

  // One step: as if the operations were called one after the other.
  void run();

  // Seconds spent so far, by name; all the rest of a step is its caller's.
  std::vector<std::pair<std::string, double>> seconds() const;

  // Bytes of keys and values that the steps so far have read, each once for every attention item that needs it.
  uint64_t page_bytes_read() const { return page_bytes_read_; }

 private:
  struct Step {
    size_t name;
    std::function<void()> run;
  };
  void add(const std::string &name, std::function<void()> run);

  Kernels &kernels_;
  Workspace &space_;
  Batch &batch_;
  std::vector<Step> steps_;
  std::vector<std::string> names_;
  std::vector<double> seconds_;
  std::map<int, size_t> tile_bytes_;  // by window: of 32 tokens, in all heads of all layers that have it
  uint64_t page_bytes_read_ = 0;
};

}  // namespace kvr
