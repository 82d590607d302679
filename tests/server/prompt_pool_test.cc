#include "server/prompt_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace folio::server {
namespace {

using Lane = PromptPool::Lane;

void Ignore(const absl::Status&) {}

// Until it is released, a long task keeps its thread.
TEST(PromptPool, ShortWorkDoesNotWaitBehindLong) {
  PromptPool pool;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> long_done{0};
  for (int i = 0; i < 40; ++i) {
    pool.Post(Lane::kLong, "a",
              {[&, released] {
                 released.wait();
                 ++long_done;
               },
               Ignore});
  }
  for (int i = 0; i < 10; ++i) {
    std::promise<void> done;
    pool.Post(Lane::kShort, "a", {[&] { done.set_value(); }, Ignore});
    done.get_future().wait();
  }
  EXPECT_EQ(long_done, 0);
  release.set_value();
  pool.Stop();
  EXPECT_EQ(long_done, 40);
}

TEST(PromptPool, ShortWorkUsesTheOtherThreadWhileThereIsNoLong) {
  PromptPool pool;
  // Each waits for the other.
  std::promise<void> first;
  std::promise<void> second;
  pool.Post(Lane::kShort, "a",
            {[&] {
               first.set_value();
               second.get_future().wait();
             },
             Ignore});
  pool.Post(Lane::kShort, "a",
            {[&] {
               second.set_value();
               first.get_future().wait();
             },
             Ignore});
  pool.Stop();
}

TEST(PromptPool, ClientsTakeTurns) {
  PromptPool pool;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  pool.Post(Lane::kLong, "first", {[released] { released.wait(); }, Ignore});
  std::vector<std::string> order;
  const auto post = [&](const std::string& client, const std::string& name) {
    pool.Post(Lane::kLong, client, {[&order, name] { order.push_back(name); }, Ignore});
  };
  for (const char* name : {"a1", "a2", "a3", "a4"}) post("a", name);
  for (const char* name : {"b1", "b2"}) post("b", name);
  post("c", "c1");
  release.set_value();
  pool.Stop();
  EXPECT_THAT(order, testing::ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4"));
}

TEST(PromptPool, AThrownErrorFailsItsTaskAlone) {
  PromptPool pool;
  std::optional<absl::Status> memory;
  std::optional<absl::Status> other;
  bool ran = false;
  pool.Post(Lane::kLong, "a",
            {[] { throw std::bad_alloc(); }, [&](const absl::Status& status) { memory = status; }});
  pool.Post(Lane::kLong, "a",
            {[] { throw std::length_error("too long"); },
             [&](const absl::Status& status) { other = status; }});
  pool.Post(Lane::kLong, "a", {[&] { ran = true; }, Ignore});
  pool.Stop();
  EXPECT_EQ(memory->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(other->code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace folio::server
