#include "engine/base/task_runs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "engine/base/worker_pool.h"

namespace folio {
namespace {

TEST(TaskRuns, AThreadHasItsOwnInOrderAndThenThoseOfTheNext) {
  TaskRuns runs(3);
  for (int loop = 0; loop < 2; ++loop) {
    runs.Begin(8);  // 0-1, 2-4, 5-7
    EXPECT_EQ(runs.Next(1), 2);
    EXPECT_EQ(runs.Next(0), 0);
    EXPECT_EQ(runs.Next(2), 5);
    for (const int task : {3, 4, 6, 7, 1}) EXPECT_EQ(runs.Next(1), task);
    for (const int thread : {0, 1, 2}) EXPECT_EQ(runs.Next(thread), -1);
  }
}

TEST(TaskRuns, AreShorterThanThereAreThreads) {
  TaskRuns runs(4);
  runs.Begin(2);
  EXPECT_EQ(runs.Next(0), 0);
  EXPECT_EQ(runs.Next(0), 1);
  EXPECT_EQ(runs.Next(0), -1);
  runs.Begin(0);
  EXPECT_EQ(runs.Next(3), -1);
}

TEST(TaskRuns, HandOutEachTaskOnceToManyThreads) {
  WorkerPool pool(4);
  TaskRuns runs(4);
  for (int loop = 0; loop < 2000; ++loop) {
    const int num_tasks = loop % 37;
    std::vector<std::atomic<int>> done(num_tasks);
    runs.Begin(num_tasks);
    pool.ParallelFor(num_tasks, [&](int64_t, int thread) { ++done.at(runs.Next(thread)); });
    for (const auto& times : done) ASSERT_EQ(times, 1) << loop;
  }
}

}  // namespace
}  // namespace folio
