#include "loadtest/statistics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace folio::loadtest {
namespace {

TEST(Statistics, PercentilesAreInterpolated) {
  // As numpy: rank = percent * (n - 1).
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 90), 3.7);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 100), 4);
  EXPECT_DOUBLE_EQ(Percentile({7}, 99), 7);
}

TEST(Statistics, SummaryOfOneToAHundred) {
  std::vector<double> samples(100);
  std::iota(samples.rbegin(), samples.rend(), 1.0);
  const Summary summary = Summarize(samples);
  EXPECT_EQ(summary.count, 100);
  EXPECT_DOUBLE_EQ(summary.mean, 50.5);
  EXPECT_DOUBLE_EQ(summary.median, 50.5);
  // Variance of 1..n is (n * n - 1) / 12.
  EXPECT_NEAR(summary.std, 28.866, 1e-3);
  EXPECT_DOUBLE_EQ(summary.p90, 90.1);
  EXPECT_DOUBLE_EQ(summary.p95, 95.05);
  EXPECT_DOUBLE_EQ(summary.p99, 99.01);
  EXPECT_DOUBLE_EQ(summary.max, 100);
}

TEST(Statistics, NothingIsSummarizedAsZero) { EXPECT_EQ(Summarize({}).count, 0); }

}  // namespace
}  // namespace folio::loadtest
