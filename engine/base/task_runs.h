#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace folio {

// Tasks of a parallel loop of which each thread has a run of its own: it goes on where it was, and
// has the same tasks, whose data may still be in its caches, each time a loop has as many. Who is
// done with its own helps the others.
class TaskRuns {
 public:
  explicit TaskRuns(int num_threads) : runs_(num_threads) {}

  // While no thread is in Next.
  void Begin(int64_t num_tasks);
  // A task of 0..num_tasks-1 that no thread has had; -1 when there is none. The first num_tasks
  // calls have one each.
  int64_t Next(int thread);

 private:
  // A cache line each: threads seldom meet.
  struct alignas(64) Run {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Run> runs_;  // by thread
};

}  // namespace folio
