#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"

namespace folio {

// Threads that do tasks in the order they come, for work that waits for a disk. Tasks do not throw.
// Thread-safe.
class TaskThreads {
 public:
  // `niceness`: as nice(1) has it, for work that must not take the processor from others. Throws
  // std::system_error where the system has no more threads.
  explicit TaskThreads(int num_threads, int niceness = 0);
  // Does what was posted before it returns.
  ~TaskThreads();

  using Tasks = std::list<std::function<void()>>;
  // Takes all of them; needs no memory.
  void Post(Tasks* tasks) noexcept FOLIO_EXCLUDES(mutex_);
  // Throws std::bad_alloc, and the task is not done.
  void Post(std::function<void()> task) FOLIO_EXCLUDES(mutex_);
  // Waits until all that was posted is done; false if it is not at `time`.
  bool AwaitIdle(std::chrono::steady_clock::time_point time) FOLIO_EXCLUDES(mutex_);

 private:
  void Run(int niceness) FOLIO_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  CondVar idle_;
  Tasks tasks_ FOLIO_GUARDED_BY(mutex_);
  int num_busy_ FOLIO_GUARDED_BY(mutex_) = 0;  // threads
  bool stopped_ FOLIO_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace folio
