// What coverage says of choices made up here.
#include "client/eval/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace folio::eval {
namespace {

v1::LayerEvidence Layer(uint32_t layer, const std::vector<std::array<uint64_t, 3>>& chunks) {
  v1::LayerEvidence evidence;
  evidence.set_layer(layer);
  evidence.set_chunk_tokens(16);
  evidence.set_candidates_end(9);  // chunks 1 to 8
  for (const auto& [chunk, votes, first_votes] : chunks) {
    evidence.add_chunks(chunk);
    evidence.add_votes(votes);
    evidence.add_first_votes(first_votes);
  }
  return evidence;
}

// The needle is in chunk 3.
TrialResult Trial() {
  TrialResult result;
  result.strategy = "long_heads:chunk_size=16,num_chunks=5";
  result.target_tokens = 256;
  result.trial_idx = 7;
  result.prompt_tokens = 180;
  result.needle_distance_tokens = 180 - 50;
  result.needle_tokens = 10;
  result.layers = {Layer(0, {{1, 4, 4}, {2, 4, 0}}), Layer(1, {{3, 4, 3}, {8, 4, 1}})};
  return result;
}

TEST(Coverage, CountsChunksVotesAndTheRightOne) {
  const std::vector<LayerCoverage> all = CoverageOf(Trial());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].candidates, 8u);
  EXPECT_EQ(all[0].chosen, 2u);
  EXPECT_EQ(all[0].num_choices, 4u);
  EXPECT_NEAR(all[0].uniformity, 1.0 / 3, 1e-12);  // ln 2 / ln 8
  EXPECT_TRUE(all[0].has_right);
  EXPECT_EQ(all[0].right, 0u);
  EXPECT_EQ(all[1].right, 4u);
  EXPECT_EQ(all[1].right_first, 3u);
  EXPECT_EQ(all[2].layer, LayerCoverage::kAllLayers);
  EXPECT_EQ(all[2].chosen, 4u);
  EXPECT_EQ(all[2].num_choices, 8u);
  EXPECT_NEAR(all[2].uniformity, 2.0 / 3, 1e-12);
}

TEST(Coverage, ANeedleThatEveryoneSeesIsNoQuestionOfChoice) {
  TrialResult result = Trial();
  result.needle_distance_tokens = 180 - 10;  // begins in the first chunk
  EXPECT_FALSE(CoverageOf(result)[0].has_right);
  result.needle_distance_tokens = 30;  // in the last ones
  EXPECT_FALSE(CoverageOf(result)[0].has_right);
  result.layers.clear();
  EXPECT_TRUE(CoverageOf(result).empty());
}

TEST(Coverage, SummaryIsTheMeanOfTrials) {
  TrialResult other = Trial();
  other.trial_idx = 8;
  other.layers[1] = Layer(1, {{5, 4, 4}, {6, 4, 0}, {7, 4, 0}, {8, 4, 0}});
  std::vector<LayerCoverage> all = CoverageOf(Trial());
  for (const LayerCoverage& coverage : CoverageOf(other)) all.push_back(coverage);
  const std::vector<CoverageRow> rows = SummarizeCoverage(all);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].layer, 1);
  EXPECT_EQ(rows[1].num_trials, 2);
  EXPECT_NEAR(rows[1].coverage, (2.0 / 8 + 4.0 / 8) / 2, 1e-12);
  EXPECT_NEAR(rows[1].right, 0.5, 1e-12);
  EXPECT_NEAR(rows[1].right_first, 0.375, 1e-12);
  EXPECT_EQ(rows[2].layer, LayerCoverage::kAllLayers);
  EXPECT_THAT(FormatCoverage(rows), testing::HasSubstr("  all           8"));
  EXPECT_THAT(CoveragePicture(rows), testing::HasSubstr("<svg"));
}

TEST(Coverage, CsvIsReadBack) {
  std::string csv = CoverageCsvHeader();
  for (const LayerCoverage& coverage : CoverageOf(Trial())) csv += CoverageCsvRecord(coverage);
  const auto read = ParseCoverageCsv(csv);
  ASSERT_TRUE(read.ok()) << read.status();
  std::string again = CoverageCsvHeader();
  for (const LayerCoverage& coverage : *read) again += CoverageCsvRecord(coverage);
  EXPECT_EQ(csv, again);
  EXPECT_EQ((*read)[2].layer, LayerCoverage::kAllLayers);
  EXPECT_THAT(ParseCoverageCsv("header\na,b\n").status().message(), testing::HasSubstr("record 2"));
}

}  // namespace
}  // namespace folio::eval
