#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvr {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until `word` is no longer `old`: some tens of microseconds awake, as the next kernel call is usually that near,
// then asleep, since a spinning thread on a crowded machine takes the very core that it waits for.
void wait_change(const std::atomic<uint32_t> &word, uint32_t old) {
  constexpr int SPINS = 4000;
  for (int i = 0; i < SPINS; i++) {
    if (word.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads, const KernelTable *table) : table_(table) {
  for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread &worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;; seen++) {
    wait_change(generation_, seen);
    if (stop_.load()) return;
    const uint64_t state = table_->thread_start();
    job_(context_, thread);
    table_->thread_stop(state);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

void ThreadPool::start(Job job, void *context) {
  const uint32_t others = (uint32_t)workers_.size();
  job_ = job;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  if (others) generation_.notify_all();
  const uint64_t state = table_->thread_start();
  job(context, 0);
  table_->thread_stop(state);
  for (uint32_t done; (done = finished_.load(std::memory_order_acquire)) != others;) wait_change(finished_, done);
}

void ThreadPool::barrier() {
  const uint32_t all = (uint32_t)workers_.size() + 1, pass = passed_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
  } else wait_change(passed_, pass);
}

}  // namespace kvr
