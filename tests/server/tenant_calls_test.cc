#include "server/auth/tenant_calls.h"

#include <gtest/gtest.h>

#include "engine/runtime/shortage.h"

namespace folio::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SteadyTime At(double second) {
  return SteadyTime(milliseconds(1000000 + static_cast<int64_t>(second * 1000)));
}

class TenantCallsTest : public ::testing::Test {
 protected:
  void Expect(const absl::StatusOr<TenantCalls::OpenCall>& call, const char* limit) {
    EXPECT_TRUE(absl::IsResourceExhausted(call.status()));
    EXPECT_EQ(call.status().GetPayload(kLimitPayload), limit);
  }

  MemoryBudget all_{1000};
  TenantCalls calls_{&all_};
};

TEST_F(TenantCallsTest, OpenCallsAreBounded) {
  calls_.SetLimits({.max_open_calls = 2});
  auto first = calls_.Open("x");
  auto second = calls_.Open("x");
  ASSERT_TRUE(first.ok() && second.ok());
  Expect(calls_.Open("y"), "tenant.open_calls");
  TenantCalls::OpenCall moved = *std::move(first);
  Expect(calls_.Open("y"), "tenant.open_calls");
  moved = {};
  EXPECT_TRUE(calls_.Open("y").ok()) << "it is closed when nobody holds it";
}

TEST_F(TenantCallsTest, ConnectionsWithOpenCallsAreBounded) {
  calls_.SetLimits({.max_connections = 1});
  auto first = calls_.Open("x");
  auto second = calls_.Open("x");
  EXPECT_TRUE(second.ok());
  Expect(calls_.Open("y"), "tenant.connections");
  *first = {};
  Expect(calls_.Open("y"), "tenant.connections");
  *second = {};
  EXPECT_TRUE(calls_.Open("y").ok());
}

TEST_F(TenantCallsTest, WithoutLimitsNothingIsRefused) {
  std::vector<TenantCalls::OpenCall> open;
  for (int i = 0; i < 1000; ++i) open.push_back(*calls_.Open(std::to_string(i)));
  EXPECT_FALSE(calls_.TakeRequests(1000000, 1000000000, At(0)).has_value());
  EXPECT_FALSE(calls_.TakeRequests(1, 1, At(0)).has_value());
  EXPECT_TRUE(calls_.memory().Take(1000).has_value());
}

TEST_F(TenantCallsTest, MemoryIsAShareOfAll) {
  calls_.SetLimits({.max_request_memory_bytes = 100});
  TenantCalls other(&all_);
  const auto mine = calls_.memory().Take(80);
  ASSERT_TRUE(mine.has_value());
  EXPECT_FALSE(calls_.memory().Take(21).has_value());
  EXPECT_FALSE(calls_.memory().HasRoom(21));
  auto rest = other.memory().Take(920);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(all_.used(), 1000);
  EXPECT_TRUE(calls_.memory().HasRoom(20));
  EXPECT_FALSE(calls_.memory().Take(20).has_value()) << "all of it is taken";
  EXPECT_EQ(calls_.memory().used(), 80);
  rest->ShrinkTo(100);
  EXPECT_EQ(all_.used(), 180);
  EXPECT_TRUE(calls_.memory().Take(20).has_value());
}

TEST_F(TenantCallsTest, RequestsHaveARate) {
  calls_.SetLimits({.requests_per_minute = 60});
  for (int i = 0; i < 60; ++i) ASSERT_FALSE(calls_.TakeRequests(1, 0, At(0)).has_value()) << i;
  const auto wait = calls_.TakeRequests(1, 0, At(0));
  ASSERT_TRUE(wait.has_value());
  EXPECT_STREQ(wait->limit, "requests_per_minute");
  EXPECT_NEAR(static_cast<double>(wait->time.count()), 1000, 2);
  EXPECT_FALSE(calls_.TakeRequests(1, 0, At(0) + wait->time).has_value());
  EXPECT_TRUE(calls_.TakeRequests(1, 0, At(1.5)).has_value());
  // No more than a minute's at once, however long it was quiet.
  EXPECT_FALSE(calls_.TakeRequests(60, 0, At(10000)).has_value());
  EXPECT_TRUE(calls_.TakeRequests(1, 0, At(10000)).has_value());
}

TEST_F(TenantCallsTest, WhatWasTakenBeyondARateIsMadeUpFor) {
  calls_.SetLimits({.tokens_per_minute = 600});
  EXPECT_FALSE(calls_.TakeRequests(1, 500, At(0)).has_value());
  calls_.TakeTokens(1300, At(0));  // 1200 too many: two minutes' worth
  const auto wait = calls_.TakeRequests(1, 10, At(0));
  ASSERT_TRUE(wait.has_value());
  EXPECT_STREQ(wait->limit, "tokens_per_minute");
  EXPECT_NEAR(static_cast<double>(wait->time.count()), 120100, 2);
  EXPECT_TRUE(calls_.TakeRequests(1, 10, At(120)).has_value());
  EXPECT_FALSE(calls_.TakeRequests(1, 10, At(120.2)).has_value());
}

TEST_F(TenantCallsTest, NewLimitsCountWhatWasTaken) {
  calls_.SetLimits({.requests_per_minute = 10});
  EXPECT_FALSE(calls_.TakeRequests(10, 0, At(0)).has_value());
  calls_.SetLimits({.requests_per_minute = 12});
  EXPECT_FALSE(calls_.TakeRequests(2, 0, At(0)).has_value());
  EXPECT_TRUE(calls_.TakeRequests(1, 0, At(0)).has_value());
  calls_.SetLimits({});
  EXPECT_FALSE(calls_.TakeRequests(1000, 0, At(0)).has_value());
}

}  // namespace
}  // namespace folio::server
