#include "engine/base/worker_pool.h"

#include <pthread.h>

namespace folio {
namespace {

// Rounds of busy waiting before a thread sleeps: a decode step starts a loop every few
// microseconds, and a futex wake-up costs more than that.
constexpr int kSpinRounds = 2000;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WorkerPool::WorkerPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this, i] { ThreadMain(i); });
  }
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mu_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::ParallelFor(int64_t num_tasks, const std::function<void(int64_t, int)>& body) {
  if (threads_.empty() || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  body_ = &body;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  {
    MutexLock lock(&mu_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.NotifyAll();
  RunTasks(0);
  for (int round = 0; num_busy_.load(std::memory_order_acquire) != 0; ++round) {
    if (round < kSpinRounds) {
      CpuRelax();
    } else {
      std::this_thread::yield();
    }
  }
}

void WorkerPool::RunTasks(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    (*body_)(task, thread);
  }
}

void WorkerPool::ThreadMain(int thread) {
  pthread_setname_np(pthread_self(), "compute");
  uint64_t seen = 0;
  for (;;) {
    for (int round = 0; round < kSpinRounds && generation_.load(std::memory_order_acquire) == seen;
         ++round) {
      CpuRelax();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      MutexLock lock(&mu_);
      while (generation_.load(std::memory_order_acquire) == seen) wake_.Wait(&mu_);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    RunTasks(thread);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace folio
