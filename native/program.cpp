#include "program.h"

#include <algorithm>

namespace kvr {

void Program::add(const std::string &name, std::function<void()> run) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  const size_t index = found - names_.begin();
  if (found == names_.end()) {
    names_.push_back(name);
    seconds_.push_back(0);
  }
  steps_.push_back({index, std::move(run)});
}

void Program::embed(const Matrix &table, float scale, Tensor &x) {
  add("embed", [&, scale] { kernels_.embed(table, batch_, scale, x); });
}

void Program::linear(const std::string &name, const Projection &projection, const Tensor &x, const Normed &input, Tensor &y,
                     bool accumulate, bool sampled) {
  add(name, [&, input, accumulate, sampled] {
    const int rows = sampled ? batch_.samples() : batch_.rows();
    if (rows) kernels_.linear(space_, projection, x, rows, input, y, accumulate);
  });
}

void Program::attend(const Attention &attention, const Tensor &qkv, Tensor &out) {
  const KVGeometry &kv = attention.kv;
  for (const bool values : {false, true})
    for (int head = 0; head < kv.kv_heads; head++) tile_bytes_[attention.window] += kv.plane(attention.layer, values, head).tile_bytes;
  add("attention", [&, attention] { kernels_.attend(space_, batch_, attention, qkv, out); });
}

void Program::add_norm(const Tensor &y, const Normed &norm, Tensor &x) {
  add("norm", [&, norm] { kernels_.add_norm(batch_, y, norm, x); });
}

void Program::gather(const Tensor &x, Tensor &y) {
  add("gather", [&] { kernels_.gather(batch_, x, y); });
}

void Program::run() {
  double before = seconds_now();
  for (const Step &step : steps_) {
    step.run();
    const double now = seconds_now();
    seconds_[step.name] += now - before;
    before = now;
  }
  for (const auto &[window, bytes] : tile_bytes_) page_bytes_read_ += batch_.tiles_read(window) * bytes;
}

std::vector<std::pair<std::string, double>> Program::seconds() const {
  std::vector<std::pair<std::string, double>> out;
  for (size_t i = 0; i < names_.size(); i++) out.emplace_back(names_[i], seconds_[i]);
  return out;
}

}  // namespace kvr
