#include "engine/base/worker_pool.h"

#include <atomic>
#include <new>

#include "gtest/gtest.h"

namespace folio {
namespace {

TEST(WorkerPool, RunsEveryTaskOnceOnKnownThreads) {
  for (int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    for (int loop = 0; loop < 200; ++loop) {
      std::vector<std::atomic<int>> runs(loop);
      std::atomic<bool> bad_thread{false};
      pool.ParallelFor(loop, [&](int64_t task, int thread) {
        runs[task].fetch_add(1);
        if (thread < 0 || thread >= threads) bad_thread = true;
      });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
      ASSERT_FALSE(bad_thread);
    }
  }
}

TEST(WorkerPool, WritesOfTheBodyAreSeenAfterTheLoop) {
  WorkerPool pool(3);
  std::vector<int> values(1000);
  for (int loop = 1; loop < 100; ++loop) {
    pool.ParallelFor(1000, [&](int64_t task, int) { values[task] += 1; });
    for (int value : values) ASSERT_EQ(value, loop);
  }
}

TEST(WorkerPool, WhatABodyThrowsReachesTheCaller) {
  for (int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    for (int bad = 0; bad < 50; ++bad) {
      EXPECT_THROW(pool.ParallelFor(50,
                                    [bad](int64_t task, int) {
                                      if (task >= bad) throw std::bad_alloc();
                                    }),
                   std::bad_alloc);
      std::atomic<int> runs{0};
      pool.ParallelFor(50, [&runs](int64_t, int) { runs.fetch_add(1); });
      ASSERT_EQ(runs.load(), 50) << "the next loop is whole";
    }
  }
}

}  // namespace
}  // namespace folio
