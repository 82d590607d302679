#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"

namespace folio {

// A fixed set of threads that run one parallel loop at a time. The caller is one of the threads.
// ParallelFor is called from one thread (the engine thread); the loop body runs on all.
class WorkerPool {
 public:
  // Throws std::system_error when the system gives no more threads.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(task, thread) for every task of 0..num_tasks-1, thread of 0..num_threads-1; returns
  // when all are done. Tasks are handed out in order, each once. Threads that come too late,
  // because another process has their core, are not waited for. What a body throws is thrown here,
  // the first of it once no body runs any more; tasks that had not begun by then do not run.
  void ParallelFor(int64_t num_tasks, const std::function<void(int64_t task, int thread)>& body);

 private:
  WorkerPool() = default;

  void ThreadMain(int thread);
  void RunTasks(int thread);
  void NoteThrown();

  // One loop; written by the caller while no thread is in it.
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<bool> has_thrown_{false};

  // The number of the loop, whether threads may still enter it, and how many are in it. A new loop
  // is begun under mu_, so that no thread falls asleep on the old number; read without it.
  std::atomic<uint64_t> loop_{0};
  std::atomic<bool> stop_{false};
  Mutex mu_;
  CondVar wake_;
  std::exception_ptr thrown_ FOLIO_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace folio
