#include "server/auth/tenant_use.h"

#include <gtest/gtest.h>

#include "engine/runtime/shortage.h"

namespace folio::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SteadyTime At(double second) {
  return SteadyTime(milliseconds(1000000 + static_cast<int64_t>(second * 1000)));
}

class TenantUseTest : public ::testing::Test {
 protected:
  void Expect(const absl::StatusOr<TenantUse::OpenCall>& call, const char* limit) {
    EXPECT_TRUE(absl::IsResourceExhausted(call.status()));
    EXPECT_EQ(call.status().GetPayload(kLimitPayload), limit);
  }

  MemoryBudget all_{1000};
  TenantUse use_{&all_};
};

TEST_F(TenantUseTest, OpenCallsAreBounded) {
  use_.SetLimits({.max_open_calls = 2});
  auto first = use_.Open("x");
  auto second = use_.Open("x");
  ASSERT_TRUE(first.ok() && second.ok());
  Expect(use_.Open("y"), "tenant.open_calls");
  TenantUse::OpenCall moved = *std::move(first);
  Expect(use_.Open("y"), "tenant.open_calls");
  moved = {};
  EXPECT_TRUE(use_.Open("y").ok()) << "it is closed when nobody holds it";
}

TEST_F(TenantUseTest, ConnectionsWithOpenCallsAreBounded) {
  use_.SetLimits({.max_connections = 1});
  auto first = use_.Open("x");
  auto second = use_.Open("x");
  EXPECT_TRUE(second.ok());
  Expect(use_.Open("y"), "tenant.connections");
  *first = {};
  Expect(use_.Open("y"), "tenant.connections");
  *second = {};
  EXPECT_TRUE(use_.Open("y").ok());
}

TEST_F(TenantUseTest, WithoutLimitsNothingIsRefused) {
  std::vector<TenantUse::OpenCall> open;
  for (int i = 0; i < 1000; ++i) open.push_back(*use_.Open(std::to_string(i)));
  EXPECT_FALSE(use_.TakeRequests(1000000, 1000000000, At(0)).has_value());
  EXPECT_FALSE(use_.TakeRequests(1, 1, At(0)).has_value());
  EXPECT_TRUE(use_.memory().Take(1000).has_value());
}

TEST_F(TenantUseTest, MemoryIsAShareOfAll) {
  use_.SetLimits({.max_request_memory_bytes = 100});
  TenantUse other(&all_);
  const auto mine = use_.memory().Take(80);
  ASSERT_TRUE(mine.has_value());
  EXPECT_FALSE(use_.memory().Take(21).has_value());
  EXPECT_FALSE(use_.memory().HasRoom(21));
  auto rest = other.memory().Take(920);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(all_.used(), 1000);
  EXPECT_TRUE(use_.memory().HasRoom(20));
  EXPECT_FALSE(use_.memory().Take(20).has_value()) << "all of it is taken";
  EXPECT_EQ(use_.memory().used(), 80);
  rest->ShrinkTo(100);
  EXPECT_EQ(all_.used(), 180);
  EXPECT_TRUE(use_.memory().Take(20).has_value());
}

TEST_F(TenantUseTest, RequestsHaveARate) {
  use_.SetLimits({.requests_per_minute = 60});
  for (int i = 0; i < 60; ++i) ASSERT_FALSE(use_.TakeRequests(1, 0, At(0)).has_value()) << i;
  const auto wait = use_.TakeRequests(1, 0, At(0));
  ASSERT_TRUE(wait.has_value());
  EXPECT_STREQ(wait->limit, "requests_per_minute");
  EXPECT_NEAR(static_cast<double>(wait->time.count()), 1000, 2);
  EXPECT_FALSE(use_.TakeRequests(1, 0, At(0) + wait->time).has_value());
  EXPECT_TRUE(use_.TakeRequests(1, 0, At(1.5)).has_value());
  // No more than a minute's at once, however long it was quiet.
  EXPECT_FALSE(use_.TakeRequests(60, 0, At(10000)).has_value());
  EXPECT_TRUE(use_.TakeRequests(1, 0, At(10000)).has_value());
}

TEST_F(TenantUseTest, WhatWasTakenBeyondARateIsMadeUpFor) {
  use_.SetLimits({.tokens_per_minute = 600});
  EXPECT_FALSE(use_.TakeRequests(1, 500, At(0)).has_value());
  use_.TakeTokens(1300, At(0));  // 1200 too many: two minutes' worth
  const auto wait = use_.TakeRequests(1, 10, At(0));
  ASSERT_TRUE(wait.has_value());
  EXPECT_STREQ(wait->limit, "tokens_per_minute");
  EXPECT_NEAR(static_cast<double>(wait->time.count()), 120100, 2);
  EXPECT_TRUE(use_.TakeRequests(1, 10, At(120)).has_value());
  EXPECT_FALSE(use_.TakeRequests(1, 10, At(120.2)).has_value());
}

TEST_F(TenantUseTest, NewLimitsCountWhatWasTaken) {
  use_.SetLimits({.requests_per_minute = 10});
  EXPECT_FALSE(use_.TakeRequests(10, 0, At(0)).has_value());
  use_.SetLimits({.requests_per_minute = 12});
  EXPECT_FALSE(use_.TakeRequests(2, 0, At(0)).has_value());
  EXPECT_TRUE(use_.TakeRequests(1, 0, At(0)).has_value());
  use_.SetLimits({});
  EXPECT_FALSE(use_.TakeRequests(1000, 0, At(0)).has_value());
}

}  // namespace
}  // namespace folio::server
