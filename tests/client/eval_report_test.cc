// Pictures, grids, and results that are read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/eval/chart.h"
#include "client/eval/methods.h"
#include "client/eval/report.h"

namespace folio::eval {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TrialResult Result(const std::string& strategy, uint64_t length, int trial, double depth,
                   bool correct) {
  TrialResult result;
  result.strategy = strategy;
  result.target_tokens = length;
  result.trial_idx = trial;
  result.depth = depth;
  result.expected = "12345";
  result.answer = "a \"quoted\", two-line\nanswer";
  result.correct = correct;
  result.prompt_tokens = length - 8;
  result.ttft_seconds = 0.25;
  return result;
}

TEST(Csv, IsReadBackWithoutWhatHasNoAnswer) {
  std::vector<TrialResult> results = {
      Result("long_heads:chunk_size=16,scorer=quest", 512, 3, 0.3, true),
      Result("full", 512, 4, 1.0, false)};
  results[0].needle_in_window = false;
  results.push_back(Result("full", 1024, 5, 0.5, false));
  results.back().status = absl::UnavailableError("gone");
  const auto read = ParseCsv(FormatCsv(results));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].strategy, results[0].strategy);
  EXPECT_EQ((*read)[0].answer, results[0].answer);
  EXPECT_EQ((*read)[0].needle_in_window, false);
  EXPECT_TRUE((*read)[0].correct);
  EXPECT_FALSE((*read)[1].correct);
  EXPECT_EQ(FormatCsv({results[0], results[1]}), FormatCsv(*read));
}

TEST(Csv, WhatFolioDidNotWriteIsRefused) {
  EXPECT_THAT(ParseCsv("header\n1,2,3\n").status().message(), HasSubstr("record 2"));
}

// 10 and 50 trials worked out by hand from (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with
// z² = 3.8415: all of n right gives n / (n + z²) to 1, half of 10 gives 1/2 ± z √(1/40 + z²/400) /
// (1 + z²/10).
TEST(Wilson, IsTheIntervalWorkedOutByHand) {
  EXPECT_NEAR(WilsonInterval(50, 50).low, 50 / 53.8415, 1e-5);
  EXPECT_NEAR(WilsonInterval(50, 50).high, 1, 1e-12);
  EXPECT_NEAR(WilsonInterval(0, 50).low, 0, 1e-12);
  EXPECT_NEAR(WilsonInterval(0, 50).high, 3.8415 / 53.8415, 1e-5);
  EXPECT_NEAR(WilsonInterval(5, 10).low, 0.5 - 1.96 * 0.186010 / 1.38415, 1e-4);
  EXPECT_NEAR(WilsonInterval(5, 10).high, 0.5 + 1.96 * 0.186010 / 1.38415, 1e-4);
  // 49 of 50: (0.98 + 0.038415 ± 1.96 √(0.000392 + 0.000384)) / 1.07683.
  EXPECT_NEAR(WilsonInterval(49, 50).low, (1.018415 - 0.054602) / 1.07683, 1e-4);
  EXPECT_NEAR(WilsonInterval(49, 50).high, (1.018415 + 0.054602) / 1.07683, 1e-4);
}

TEST(Table, HasTheIntervalBelowTheAccuracy) {
  std::vector<TrialResult> results;
  for (int i = 0; i < 10; ++i) results.push_back(Result("full", 512, i, 0.5, i < 5));
  results.push_back(Result("full", 1024, 0, 0.5, false));
  results.back().status = absl::UnavailableError("gone");
  EXPECT_EQ(FormatTable(SummarizeResults(results)),
            "strategy        512       1024\n"
            "full           50.0         -!\n"
            "  95 %    23.7-76.3          -\n");
  const nlohmann::ordered_json cells = RowsToJson(SummarizeResults(results));
  EXPECT_NEAR(cells[0]["accuracy_low"].get<double>(), 0.2366, 1e-4);
  EXPECT_NEAR(cells[0]["accuracy_high"].get<double>(), 0.7634, 1e-4);
  EXPECT_FALSE(cells[1].contains("accuracy_low"));
}

TEST(Grid, GroupsTrialsByDepth) {
  const std::vector<TrialResult> results = {
      Result("full", 512, 0, 0.0, true), Result("full", 512, 1, 0.24, false),
      Result("full", 512, 2, 0.5, true), Result("full", 1024, 3, 1.0, false)};
  const std::vector<DepthGrid> grids = GridByDepth(results, 3);
  ASSERT_EQ(grids.size(), 1u);
  EXPECT_EQ(grids[0].accuracy, (std::vector<std::vector<double>>{{0.5, -1}, {1, -1}, {-1, 0}}));
  EXPECT_EQ(FormatGrid(grids[0]),
            "full\ndepth        512      1024\n   0 %        50         -\n"
            "  50 %       100         -\n 100 %         -         0\n");
}

TEST(Chart, DrawsOneLinePerSeriesAndEscapesNames) {
  const std::string svg =
      LineChart({"t", "x", "y"}, {{"a<b", {{256, 100}, {512, 0}}}, {"c", {{256, 50}}}}, 100);
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, HasSubstr("x1=\"60.0\" y1=\"40.0\" x2=\"580.0\" y2=\"300.0\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"60.0\" cy=\"170.0\""));
  EXPECT_THAT(svg, Not(HasSubstr("stroke-dasharray")));
  EXPECT_THAT(svg, Not(HasSubstr("above the axis")));
}

// Three lines of which two are the same: those two take turns, 7 pixels each, and stand 7 apart.
TEST(Chart, LinesThatLieOnEachOtherAreAllSeen) {
  const std::string svg = LineChart({"t", "x", "y"},
                                    {{"a", {{256, 100}, {512, 100}}},
                                     {"b", {{256, 50}, {512, 100}}},
                                     {"c", {{256, 100}, {512, 100}}}},
                                    100);
  EXPECT_THAT(svg, HasSubstr("stroke=\"#0072B2\" stroke-width=\"2\" stroke-dasharray=\"7 7\" "
                             "stroke-dashoffset=\"-0\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#D55E00\" stroke-width=\"2\"/>"));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#009E73\" stroke-width=\"2\" stroke-dasharray=\"7 7\" "
                             "stroke-dashoffset=\"-7\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"56.5\" cy=\"40.0\" r=\"3\" fill=\"#0072B2\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"63.5\" cy=\"40.0\" r=\"3\" fill=\"#009E73\""));
  for (const char* at_512 : {"573.0", "580.0", "587.0"}) {
    EXPECT_THAT(svg, HasSubstr(absl::StrCat("cx=\"", at_512, "\" cy=\"40.0\""))) << at_512;
  }
}

TEST(Chart, WhatIsAboveTheAxisIsMarked) {
  const std::string svg =
      LineChart({"t", "x", "y"}, {{"a", {{256, 10}, {512, 1000}, {1024, NAN}}}}, 100);
  EXPECT_THAT(svg, HasSubstr("<path class=\"cut\" d=\"M320.0,34.0"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"cut\" d=\"M580.0,34.0"));
  EXPECT_THAT(svg, HasSubstr("triangles: above the axis"));
}

double WidthOf(const std::string& svg) {
  const size_t at = svg.find("width=\"") + 7;
  return std::stod(svg.substr(at));
}

TEST(Chart, NamesAndTitlesAreNotCutOff) {
  const std::string name(100, 'm');
  EXPECT_GT(WidthOf(LineChart({"t", "x", "y"}, {{name, {{256, 1}}}}, 1)), 600 + 100 * 7);
  EXPECT_GT(WidthOf(LineChart({std::string(200, 'm'), "x", "y"}, {{"a", {{256, 1}}}}, 1)), 200 * 7);
  const std::vector<HeatMap> maps = {{name, {{1.0}}}, {"b", {{1.0}}}};
  const std::string svg = HeatMaps({"t", "x", "y"}, {"256"}, {"0 %"}, maps);
  EXPECT_GT(WidthOf(svg), 60 + 2 * 100 * 7);
  // The second name begins where the first has ended.
  const size_t second = svg.find(">b</text>");
  const size_t x = svg.rfind("x=\"", second) + 3;
  EXPECT_GT(std::stod(svg.substr(x)), 60 + 100 * 7);
}

TEST(Chart, HeatMapLeavesOutWhatWasNotMeasured) {
  const std::string svg =
      HeatMaps({"t", "x", "y"}, {"256", "512"}, {"0 %"}, {{"m", {{1.0, -1.0}}}});
  EXPECT_THAT(svg, HasSubstr(">100<"));
  EXPECT_THAT(svg, HasSubstr("#eee"));
}

TEST(Methods, AreSplitAtCommasThatSetNoParameter) {
  const auto methods =
      ParseMethods("full,full+yarn:factor=8,beta_fast=16,long_heads:chunk_size=16,scorer=quest");
  ASSERT_TRUE(methods.ok()) << methods.status();
  ASSERT_EQ(methods->size(), 3u);
  EXPECT_EQ((*methods)[1].name, "full+yarn:factor=8,beta_fast=16");
  EXPECT_EQ((*methods)[1].position.yarn().beta_fast(), 16);
  EXPECT_EQ((*methods)[2].strategy.long_heads().scorer(), v1::LongHeads::SCORER_QUEST);
  EXPECT_FALSE(ParseMethods("full+magic").ok());
  EXPECT_FALSE(ParseMethods("").ok());
}

}  // namespace
}  // namespace folio::eval
