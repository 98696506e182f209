// The machine's limits, measured through the same threads and instructions as the kernels.
#include <cstring>
#include <vector>

#include "operations.h"

namespace kvr {
namespace {

// The best of a few runs of f, which returns the operations it did, as operations a second over all threads.
template <class F> double best_rate(ThreadPool &threads, int repeats, F f) {
  std::vector<double> done(threads.size());
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const double begin = seconds_now();
    threads.run_everywhere([&](int thread) { done[thread] = f(thread); });
    double total = 0;
    for (double d : done) total += d;
    best = std::max(best, total / (seconds_now() - begin));
  }
  return best;
}

// Operations a second of a measuring loop, which is lengthened until it takes some milliseconds.
double peak(ThreadPool &threads, double (*multiply)(int64_t)) {
  int64_t iterations = 1 << 10;
  for (;; iterations *= 4) {
    const double begin = seconds_now();
    threads.run([&](int) { multiply(iterations); });
    if (seconds_now() - begin > 2e-3) break;
  }
  return best_rate(threads, 5, [&](int) { return multiply(iterations); });
}

}  // namespace

double Kernels::read_bandwidth(size_t bytes, int repeats) {
  const size_t each = bytes / threads_.size() / 4096 * 4096;
  Region buffer(each * threads_.size(), true);
  threads_.run_everywhere([&](int thread) { std::memset(buffer.data() + each * thread, 1, each); });
  volatile double keep = 0;
  return best_rate(threads_, repeats, [&](int thread) {
    keep = path_.table->read_bytes(buffer.data() + each * thread, each);
    return (double)each;
  });
}

double Kernels::int8_peak() { return peak(threads_, path_.table->multiply_int8); }

double Kernels::float_peak() { return peak(threads_, path_.table->multiply_float); }

double Kernels::fork_join_seconds() {
  constexpr int CALLS = 2000;
  double best = 1;
  for (int i = 0; i < 5; i++) {
    const double begin = seconds_now();
    for (int call = 0; call < CALLS; call++) threads_.run_everywhere([](int) {});
    best = std::min(best, (seconds_now() - begin) / CALLS);
  }
  return best;
}

}  // namespace kvr
