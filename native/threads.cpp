#include "threads.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

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

}  // namespace

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void wait_change(const std::atomic<uint32_t> &word, uint32_t old) {
  constexpr int SPINS = 4000;  // the next kernel call is usually nearer than this; a longer spin would take others' cores
  for (int i = 0; i < SPINS; i++) {
    if (word.load(std::memory_order_acquire) != old) return;
    relax();
  }
  word.wait(old, std::memory_order_acquire);
}

ThreadPool::ThreadPool(int threads, const KernelTable *table) : table_(table) {
  try {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error &) {
    const std::string started = std::to_string(size());
    stop();
    throw std::invalid_argument("the system gives no more than " + started + " of " + std::to_string(threads) + " threads");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  posted_.fetch_add(1, std::memory_order_release);
  posted_.notify_all();
  for (std::thread &worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;;) {
    for (uint32_t now; (now = posted_.load(std::memory_order_acquire)) == seen;) wait_change(posted_, now);
    if (stop_.load()) return;
    uint64_t state = state_.load(std::memory_order_acquire);
    while (!(state & CLOSED) && !state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {}
    seen = number(state);
    if (state & CLOSED) continue;
    const uint64_t modes = table_->thread_start();
    job_(context_, thread);
    table_->thread_stop(modes);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

void ThreadPool::start(Job job, void *context, bool everywhere) {
  const uint32_t next = posted_.load(std::memory_order_relaxed) + 1;
  job_ = job;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  state_.store((uint64_t)next << 32, std::memory_order_release);
  posted_.store(next, std::memory_order_release);
  if (!workers_.empty()) posted_.notify_all();
  const uint64_t modes = table_->thread_start();
  job(context, 0);
  table_->thread_stop(modes);
  while (everywhere && entered(state_.load(std::memory_order_acquire)) < workers_.size()) relax();
  const uint32_t came = entered(state_.fetch_or(CLOSED, std::memory_order_acq_rel));
  for (uint32_t done; (done = finished_.load(std::memory_order_acquire)) < came;) wait_change(finished_, done);
}

}  // namespace kvr
