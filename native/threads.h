// A team of threads that share the pieces of a job, and phases that order the pieces.
//
// Nothing ever waits for a thread that has not begun: a worker that the system keeps off its core is simply not missed,
// the others take its pieces. (With barriers among all threads, one busy neighbour makes every step wait for the scheduler.)
#pragma once
#include <atomic>
#include <thread>
#include <vector>

#include "kernels.h"

namespace kvr {

// Seconds of a clock that only goes forward.
double seconds_now();

// Waits until `word` is no longer `old`: awake for some tens of microseconds, then asleep.
void wait_change(const std::atomic<uint32_t> &word, uint32_t old);

// Pieces 0 .. total-1, each taken by one thread.
class Phase {
 public:
  explicit Phase(int total) : total_((uint32_t)total) {}

  // f(begin, end) for ranges of up to `chunk` pieces, as long as there are any.
  template <class F> void share(int chunk, F &&f) {
    for (uint32_t begin; (begin = next_.fetch_add((uint32_t)chunk, std::memory_order_relaxed)) < total_;) {
      const uint32_t end = begin + (uint32_t)chunk < total_ ? begin + (uint32_t)chunk : total_;
      f((int)begin, (int)end);
      if (done_.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin == total_) done_.notify_all();
    }
  }

  // Returns when every piece is done, by whomever.
  void wait() const {
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) < total_;) wait_change(done_, done);
  }

 private:
  const uint32_t total_;
  alignas(64) std::atomic<uint32_t> next_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
};

class ThreadPool {
 public:
  // `threads` includes the caller's. Workers start at once and sleep when there is nothing to do. Throws std::invalid_argument
  // where the system gives no more threads.
  ThreadPool(int threads, const KernelTable *table);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const { return (int)workers_.size() + 1; }

  // f(thread) on the caller's thread (0), and on every worker that comes before the caller is done: f must share its work by
  // phases. Returns when all who came are done. Denormals are flushed inside, and restored on the caller's thread.
  template <class F> void run(F &&f) { start(&call<F>, &f, false); }

  // The same, on every worker without fail: for measuring.
  template <class F> void run_everywhere(F &&f) { start(&call<F>, &f, true); }

 private:
  using Job = void (*)(void *, int);
  template <class F> static void call(void *context, int thread) { (*static_cast<std::remove_reference_t<F> *>(context))(thread); }
  void start(Job job, void *context, bool everywhere);
  void stop();
  void work(int thread);

  // The number of the job, whether it is closed to late workers, and how many have entered.
  static constexpr uint64_t CLOSED = 1u << 31;
  static uint32_t number(uint64_t state) { return (uint32_t)(state >> 32); }
  static uint32_t entered(uint64_t state) { return (uint32_t)(state & (CLOSED - 1)); }

  const KernelTable *table_;
  Job job_ = nullptr;
  void *context_ = nullptr;
  alignas(64) std::atomic<uint32_t> posted_{0};  // the number of the newest job: what idle workers watch
  alignas(64) std::atomic<uint64_t> state_{CLOSED};
  alignas(64) std::atomic<uint32_t> finished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvr
