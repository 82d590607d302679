#include "engine/base/for_all.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace folio {
namespace {

TEST(ForAll, DoesEachOnce) {
  TaskThreads helpers(3);
  for (const int count : {0, 1, 2, 100}) {
    std::vector<std::atomic<int>> done(count);
    EXPECT_TRUE(ForAll(count, 3, &helpers, [&](int n) {
                  ++done[n];
                  return absl::OkStatus();
                }).ok());
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(ForAll, HelpersHelp) {
  TaskThreads helpers(2);
  std::mutex mutex;
  std::condition_variable changed;
  int busy = 0;
  // Ends only once three are under way.
  EXPECT_TRUE(ForAll(3, 2, &helpers, [&](int) {
                std::unique_lock lock(mutex);
                ++busy;
                changed.notify_all();
                changed.wait(lock, [&] { return busy == 3; });
                return absl::OkStatus();
              }).ok());
}

TEST(ForAll, NeedsNoHelper) {
  TaskThreads helpers(1);
  std::mutex mutex;
  mutex.lock();  // the only helper has no time
  helpers.Post([&] { const std::lock_guard lock(mutex); });
  const std::thread::id caller = std::this_thread::get_id();
  int done = 0;
  EXPECT_TRUE(ForAll(10, 4, &helpers, [&](int) {
                EXPECT_EQ(std::this_thread::get_id(), caller);
                ++done;
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(done, 10);
  mutex.unlock();
}

TEST(ForAll, AfterAnErrorNothingIsBegunAndNothingUnderWay) {
  TaskThreads helpers(3);
  const auto fifth = [](int n) { return n == 5 ? absl::DataLossError("five") : absl::OkStatus(); };
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> under_way = 0;
    const absl::Status status = ForAll(50, 3, &helpers, [&](int n) {
      ++under_way;
      std::this_thread::yield();
      --under_way;
      return fifth(n);
    });
    EXPECT_EQ(status, absl::DataLossError("five"));
    EXPECT_EQ(under_way, 0);
  }
  int begun = 0;
  EXPECT_FALSE(ForAll(50, 0, &helpers, [&](int n) {
                 ++begun;
                 return fifth(n);
               }).ok());
  EXPECT_EQ(begun, 6);
  EXPECT_EQ(ForAll(4, 3, &helpers, [](int) -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace folio
