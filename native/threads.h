// A team of threads that run the same function, and a barrier among them.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

#include "kernels.h"

namespace kvr {

class ThreadPool {
 public:
  // `threads` includes the caller's. Workers start at once and sleep when there is nothing to do.
  ThreadPool(int threads, const KernelTable *table);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const { return (int)workers_.size() + 1; }

  // f(thread) on every thread; returns when all are done. Denormals are flushed inside, and restored on the caller's thread.
  template <class F> void run(F &&f) {
    start([](void *context, int thread) { (*static_cast<F *>(context))(thread); }, &f);
  }

  // Inside run: nobody passes before all have come.
  void barrier();

 private:
  using Job = void (*)(void *, int);
  void start(Job job, void *context);
  void work(int thread);

  const KernelTable *table_;
  Job job_ = nullptr;
  void *context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> passed_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvr
