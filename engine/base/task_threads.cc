#include "engine/base/task_threads.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace folio {

TaskThreads::TaskThreads(int num_threads, int niceness) {
  threads_.reserve(num_threads);
  for (int n = 0; n < num_threads; ++n) threads_.emplace_back([this, niceness] { Run(niceness); });
}

TaskThreads::~TaskThreads() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void TaskThreads::Post(Tasks* tasks) noexcept {
  const size_t to_wake = std::min(tasks->size(), threads_.size());
  MutexLock lock(&mutex_);
  tasks_.splice(tasks_.end(), *tasks);
  // Within the lock: once the tasks are done this object may go.
  for (size_t n = 0; n < to_wake; ++n) changed_.NotifyOne();
}

void TaskThreads::Post(std::function<void()> task) {
  Tasks one;
  one.push_back(std::move(task));
  Post(&one);
}

bool TaskThreads::AwaitIdle(std::chrono::steady_clock::time_point time) {
  MutexLock lock(&mutex_);
  while (num_busy_ > 0 || !tasks_.empty()) {
    if (!idle_.WaitUntil(&mutex_, time)) break;
  }
  return num_busy_ == 0 && tasks_.empty();
}

void TaskThreads::Run(int niceness) {
  // On Linux of this thread alone. Where it is refused it runs like the others.
  if (niceness != 0) ::setpriority(PRIO_PROCESS, 0, niceness);
  while (true) {
    Tasks task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopped_) changed_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task.splice(task.end(), tasks_, tasks_.begin());
      ++num_busy_;
    }
    task.front()();
    task.clear();
    MutexLock lock(&mutex_);
    if (--num_busy_ == 0 && tasks_.empty()) idle_.NotifyAll();
  }
}

}  // namespace folio
