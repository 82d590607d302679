#include "engine/attention/strategy_registry.h"
#include "engine/attention/visible_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StrategySpec Resolved(const StrategySpec& spec, const StrategyLimits& limits) {
  auto resolved = ResolveStrategySpec(spec, limits);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(StrategySpec{});
}

std::string Refusal(const StrategySpec& spec, const StrategyLimits& limits) {
  return std::string(ResolveStrategySpec(spec, limits).status().message());
}

const StrategyLimits kLlama2{4096, 64};

// methods: W=4, G=1, i=6 -> keys {0 @4, 3 @3, 4 @2, 5 @1, 6 @0}.
TEST(LmInfinite, ShowsTheKeysOfThePublishedExample) {
  const StrategyLimits limits{4, 16};
  const auto plan =
      PlanFor(Resolved({"lm_infinite", {{"num_sinks", 1}, {"window", 4}}}, limits), limits);
  EXPECT_THAT(ExpandPlan(plan, 6, {}),
              ElementsAre(VisibleKey{0, 4}, VisibleKey{3, 3}, VisibleKey{4, 2}, VisibleKey{5, 1},
                          VisibleKey{6, 0}));
}

TEST(LmInfinite, SeesASinkInsideTheWindowOnceAtItsTrueDistance) {
  const auto plan = PlanFor(
      Resolved({"lm_infinite", {{"num_sinks", 3}, {"window", 4}, {"distance_limit", 4}}}, kLlama2),
      kLlama2);
  EXPECT_THAT(ExpandPlan(plan, 4, {}),
              ElementsAre(VisibleKey{0, 4}, VisibleKey{1, 3}, VisibleKey{2, 2}, VisibleKey{3, 1},
                          VisibleKey{4, 0}));
}

TEST(LmInfinite, DefaultsToTheTrainedWindowTenSinksAndTheCeilingAtTheWindow) {
  EXPECT_THAT(Resolved({"lm_infinite", {}}, kLlama2).params,
              ElementsAre(std::pair<std::string, int64_t>("num_sinks", 10),
                          std::pair<std::string, int64_t>("window", 4096),
                          std::pair<std::string, int64_t>("distance_limit", 4096)));
  EXPECT_EQ(Resolved({"lm_infinite", {{"window", 100}}}, kLlama2).Param("distance_limit"), 100);
}

// Query 11 of chunk size 2 lies in chunk 5; chunks 0, 4 and the pick 2 come before its own. The
// chosen chunks stand side by side: positions 0..5, the query at 6 + 1.
TEST(LongHeads, CompactsThePositionsOfTheChosenChunks) {
  AttentionPlan plan;
  plan.selection = {2, 1};
  plan.stages.push_back(
      {.keys = AttentionStage::Keys::kChunks, .distance = AttentionStage::Distance::kCompacted});
  EXPECT_THAT(
      ExpandPlan(plan, 11, {2}),
      ElementsAre(VisibleKey{0, 7}, VisibleKey{1, 6}, VisibleKey{4, 5}, VisibleKey{5, 4},
                  VisibleKey{8, 3}, VisibleKey{9, 2}, VisibleKey{10, 1}, VisibleKey{11, 0}));
}

TEST(LongHeads, EqualsFullAttentionWhenEveryChunkIsChosen) {
  AttentionPlan plan;
  plan.selection = {2, 3};
  plan.stages.push_back(
      {.keys = AttentionStage::Keys::kChunks, .distance = AttentionStage::Distance::kCompacted});
  AttentionPlan full;
  full.stages.emplace_back();
  EXPECT_EQ(ExpandPlan(plan, 11, {1, 2, 3}), ExpandPlan(full, 11, {}));
}

TEST(LongHeads, DefaultsAreThePapersForALlama2Window) {
  EXPECT_THAT(Resolved({"long_heads", {}}, kLlama2).params,
              ElementsAre(std::pair<std::string, int64_t>("chunk_size", 256),
                          std::pair<std::string, int64_t>("attention_length", 4096),
                          std::pair<std::string, int64_t>("begin_selective_length", 4096)));
  EXPECT_EQ(Resolved({"long_heads", {}}, {256, 16}).Param("chunk_size"), 16);
  EXPECT_EQ(Resolved({"long_heads", {}}, {2048, 64}).Param("chunk_size"), 128);
}

TEST(LongHeads, NeverLeavesTheTrainedWindow) {
  const auto plan = PlanFor(Resolved({"long_heads", {}}, kLlama2), kLlama2);
  std::vector<int64_t> picks;
  for (int64_t c = 1; c <= 13; ++c) picks.push_back(3 * c);
  for (const VisibleKey& key : ExpandPlan(plan, 1'000'000'000 + 255, picks)) {
    EXPECT_LT(key.distance, 4096);
  }
}

TEST(LongHeads, RefusesWhatTheMethodDoesNotAllowAndSaysWhy) {
  EXPECT_THAT(Refusal({"long_heads", {{"chunk_size", 100}}}, kLlama2),
              HasSubstr("long_heads.chunk_size is 100, must be a multiple of the page size 64"));
  EXPECT_THAT(Refusal({"long_heads", {{"attention_length", 1000}}}, kLlama2),
              HasSubstr("multiple of chunk_size 256"));
  EXPECT_THAT(Refusal({"long_heads", {{"attention_length", 8192}}}, kLlama2),
              HasSubstr("must be in [256, 4096]"));
  EXPECT_THAT(Refusal({"long_heads", {{"begin_selective_length", 2048}}}, kLlama2),
              HasSubstr("at least attention_length - chunk_size = 3840"));
  EXPECT_THAT(Refusal({"long_heads", {{"attention_length", 768}}}, kLlama2),
              HasSubstr("at least 4 chunks"));
}

TEST(StrategyRegistry, NamesTheKnownStrategiesForAnUnknownOne) {
  EXPECT_THAT(Refusal({"magic", {}}, kLlama2), HasSubstr("full, lm_infinite, long_heads"));
}

}  // namespace
}  // namespace folio
