#include "engine/base/worker_pool.h"

#include <pthread.h>

#include <utility>

namespace folio {
namespace {

// Rounds of busy waiting before a thread sleeps: a decode step starts a loop every few
// microseconds, and a futex wake-up costs more than that.
constexpr int kSpinRounds = 2000;

// WorkerPool::loop_
constexpr uint64_t kThreads = 0xffff;
constexpr uint64_t kOpen = 1 << 16;
constexpr uint64_t kNumber = 1 << 17;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// Delegates, so that the destructor ends the threads there are when one more cannot be had.
WorkerPool::WorkerPool(int num_threads) : WorkerPool() {
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this, i] { ThreadMain(i); });
  }
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mu_);
    stop_.store(true);
    loop_.fetch_add(kNumber);
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
  {
    MutexLock lock(&mu_);
    loop_.fetch_add(kNumber + kOpen, std::memory_order_release);
  }
  wake_.NotifyAll();
  RunTasks(0);
  loop_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int round = 0; (loop_.load(std::memory_order_acquire) & kThreads) != 0; ++round) {
    if (round < kSpinRounds) {
      CpuRelax();
    } else {
      std::this_thread::yield();
    }
  }
  if (!has_thrown_.load(std::memory_order_relaxed)) return;
  has_thrown_.store(false, std::memory_order_relaxed);
  const std::exception_ptr thrown = [this] {
    MutexLock lock(&mu_);
    return std::exchange(thrown_, nullptr);
  }();
  std::rethrow_exception(thrown);
}

void WorkerPool::RunTasks(int thread) {
  try {
    for (;;) {
      const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks_) return;
      (*body_)(task, thread);
    }
  } catch (...) {
    NoteThrown();
  }
}

void WorkerPool::NoteThrown() {
  next_task_.store(num_tasks_, std::memory_order_relaxed);
  MutexLock lock(&mu_);
  if (!has_thrown_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
}

void WorkerPool::ThreadMain(int thread) {
  pthread_setname_np(pthread_self(), "compute");
  uint64_t seen = 0;
  const auto is_new = [&] { return loop_.load(std::memory_order_acquire) / kNumber != seen; };
  for (;;) {
    for (int round = 0; round < kSpinRounds && !is_new(); ++round) CpuRelax();
    if (!is_new()) {
      MutexLock lock(&mu_);
      while (!is_new()) wake_.Wait(&mu_);
    }
    uint64_t loop = loop_.load(std::memory_order_acquire);
    seen = loop / kNumber;
    if (stop_.load(std::memory_order_acquire)) return;
    while ((loop & kOpen) != 0 && loop / kNumber == seen) {
      if (!loop_.compare_exchange_weak(loop, loop + 1, std::memory_order_acquire)) continue;
      RunTasks(thread);
      loop_.fetch_sub(1, std::memory_order_release);
      break;
    }
  }
}

}  // namespace folio
