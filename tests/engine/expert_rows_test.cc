#include "engine/backend/cpu/expert_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace folio {
namespace {

std::vector<int> RowsOf(const ExpertRows& rows, int expert) {
  std::vector<int> result;
  for (const ExpertRows::Entry& entry : rows.of(expert)) result.push_back(entry.row);
  return result;
}

TEST(ExpertRows, EachRowGoesThroughItsBestExpertsWithTheSoftmaxOfTheirScores) {
  const float ln3 = std::log(3.0f);
  const std::vector<float> scores = {
      0, ln3, -5, -1,   // 1 and 0: 3/4 and 1/4
      7, 1,   2,  7,    // 0 and 3, equal
      4, 5,   90, 90};  // 2 and 3, where exp of the scores themselves is no number
  ExpertRows rows;
  for (int again = 0; again < 2; ++again) {
    rows.Choose(scores.data(), 3, 4, 2);
    EXPECT_EQ(RowsOf(rows, 0), (std::vector<int>{0, 1}));
    EXPECT_EQ(RowsOf(rows, 1), (std::vector<int>{0}));
    EXPECT_EQ(RowsOf(rows, 2), (std::vector<int>{2}));
    EXPECT_EQ(RowsOf(rows, 3), (std::vector<int>{1, 2}));
    EXPECT_FLOAT_EQ(rows.of(0)[0].weight, 0.25f);
    EXPECT_FLOAT_EQ(rows.of(1)[0].weight, 0.75f);
    EXPECT_FLOAT_EQ(rows.of(0)[1].weight, 0.5f);
    EXPECT_FLOAT_EQ(rows.of(3)[1].weight, 0.5f);
  }
}

TEST(ExpertRows, AmongEqualsTheSmallerIndex) {
  const std::vector<float> scores = {1, 2, 2, 2};
  ExpertRows rows;
  rows.Choose(scores.data(), 1, 4, 2);
  EXPECT_EQ(rows.of(1).size(), 1u);
  EXPECT_EQ(rows.of(2).size(), 1u);
  EXPECT_TRUE(rows.of(0).empty() && rows.of(3).empty());
}

TEST(ExpertRows, AllExpertsMayBeChosen) {
  const std::vector<float> scores = {0, 0};
  ExpertRows rows;
  rows.Choose(scores.data(), 1, 2, 2);
  EXPECT_FLOAT_EQ(rows.of(0)[0].weight, 0.5f);
  EXPECT_FLOAT_EQ(rows.of(1)[0].weight, 0.5f);
}

TEST(ExpertRows, NumbersThatAreNoneChooseSomeExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> scores = {nan, nan, nan};
  ExpertRows rows;
  rows.Choose(scores.data(), 1, 3, 2);
  EXPECT_EQ(rows.of(0).size() + rows.of(1).size() + rows.of(2).size(), 2u);
}

}  // namespace
}  // namespace folio
