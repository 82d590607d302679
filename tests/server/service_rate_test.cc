#include "server/service_rate.h"

#include <gtest/gtest.h>

namespace folio::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const SteadyTime kStart = SteadyTime(seconds(1000));

TEST(ServiceRate, WithoutExperienceItIsOneSecond) {
  EXPECT_EQ(ServiceRate().RetryDelay(100, 0, kStart), seconds(1));
}

TEST(ServiceRate, IsTheMeanIntervalTimesTheQueue) {
  ServiceRate rate;
  for (int i = 0; i < 4; ++i) rate.OnFinished(kStart + seconds(2) * i);
  EXPECT_EQ(rate.RetryDelay(3, 0, kStart + seconds(6)), seconds(6));
}

TEST(ServiceRate, StaysWithinItsBounds) {
  ServiceRate rate;
  for (int i = 0; i < 4; ++i) rate.OnFinished(kStart + milliseconds(1) * i);
  EXPECT_EQ(rate.RetryDelay(1, 0, kStart), seconds(1));
  for (int i = 1; i < 9; ++i) rate.OnFinished(kStart + seconds(100) * i);
  EXPECT_EQ(rate.RetryDelay(10000, 0, kStart + seconds(800)), seconds(60));
}

TEST(ServiceRate, AStandstillRaisesIt) {
  ServiceRate rate;
  for (int i = 0; i < 4; ++i) rate.OnFinished(kStart + seconds(1) * i);
  EXPECT_EQ(rate.RetryDelay(4, 0, kStart + seconds(3)), seconds(4));
  EXPECT_EQ(rate.RetryDelay(4, 0, kStart + seconds(43)), seconds(32));  // 4 * 0.2 * 40 s
}

TEST(ServiceRate, PromptsThatTakeLongerThanDeparturesSayWhen) {
  ServiceRate rate;
  for (int i = 0; i < 4; ++i) rate.OnFinished(kStart + seconds(1) * i);
  EXPECT_EQ(rate.RetryDelay(3, 12.5, kStart + seconds(3)), milliseconds(12500));
  EXPECT_EQ(rate.RetryDelay(3, 2, kStart + seconds(3)), seconds(3));
  EXPECT_EQ(rate.RetryDelay(3, 1e9, kStart + seconds(3)), seconds(60));
}

}  // namespace
}  // namespace folio::server
