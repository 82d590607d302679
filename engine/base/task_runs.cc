#include "engine/base/task_runs.h"

namespace folio {

void TaskRuns::Begin(int64_t num_tasks) {
  const int64_t num_runs = std::ssize(runs_);
  for (int64_t n = 0; n < num_runs; ++n) {
    runs_[n].next.store(n * num_tasks / num_runs, std::memory_order_relaxed);
    runs_[n].end = (n + 1) * num_tasks / num_runs;
  }
}

int64_t TaskRuns::Next(int thread) {
  const int64_t num_runs = std::ssize(runs_);
  for (int64_t n = 0; n < num_runs; ++n) {
    Run& run = runs_[(thread + n) % num_runs];
    // Else a run that has ended would count on.
    if (run.next.load(std::memory_order_relaxed) >= run.end) continue;
    const int64_t task = run.next.fetch_add(1, std::memory_order_relaxed);
    if (task < run.end) return task;
  }
  return -1;
}

}  // namespace folio
