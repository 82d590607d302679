#include "loadtest/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "loadtest/statistics.h"

namespace folio::loadtest {
namespace {

// The gaps between the first arrivals of a schedule.
std::vector<double> Gaps(double rate, double burstiness, uint64_t seed, int count) {
  ArrivalSchedule schedule(rate, burstiness, seed);
  std::vector<double> gaps;
  double last = 0;
  for (int i = 0; i < count; ++i) {
    gaps.push_back(schedule.next_seconds() - last);
    last = schedule.next_seconds();
    schedule.Advance();
  }
  return gaps;
}

TEST(Arrivals, PoissonGapsHaveMeanAndDeviationOfTheRate) {
  const Summary gaps = Summarize(Gaps(20, 1, 1, 20000));
  EXPECT_NEAR(gaps.mean, 0.05, 0.002);
  EXPECT_NEAR(gaps.std / gaps.mean, 1.0, 0.03);
}

TEST(Arrivals, BurstinessSetsTheVariation) {
  // Coefficient of variation 1 / sqrt(b): 2 for b = 0.25, 0.5 for b = 4.
  const Summary bursts = Summarize(Gaps(20, 0.25, 1, 40000));
  EXPECT_NEAR(bursts.mean, 0.05, 0.003);
  EXPECT_NEAR(bursts.std / bursts.mean, 2.0, 0.1);
  const Summary even = Summarize(Gaps(20, 4, 1, 20000));
  EXPECT_NEAR(even.std / even.mean, 0.5, 0.02);
}

TEST(Arrivals, SeedDecidesTheSchedule) {
  EXPECT_EQ(Gaps(5, 1, 3, 50), Gaps(5, 1, 3, 50));
  EXPECT_NE(Gaps(5, 1, 3, 50), Gaps(5, 1, 4, 50));
}

TEST(Arrivals, TimeNeverGoesBack) {
  for (const double gap : Gaps(100, 0.1, 9, 10000)) EXPECT_GE(gap, 0);
}

}  // namespace
}  // namespace folio::loadtest
