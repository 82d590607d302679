#include "engine/attention/plan_check.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/attention/slice_rotations.h"
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

AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) {
  return FindStrategy(spec.name)->Plan(Resolved(spec, limits), limits);
}

std::string Refusal(const StrategySpec& spec, const StrategyLimits& limits) {
  return std::string(ResolveStrategySpec(spec, limits).status().message());
}

const StrategyLimits kLlama2{4096, 64, 0};

std::pair<std::string, ParamValue> Given(const char* name, int64_t value) { return {name, value}; }

// The first parameters in canonical order.
ParamList First(const StrategySpec& spec, size_t count) {
  return {spec.params.begin(), spec.params.begin() + count};
}

// docs/methods.md, section 6: W=4, G=1, i=6 -> keys {0 @4, 3 @3, 4 @2, 5 @1, 6 @0}.
TEST(LmInfinite, ShowsTheKeysOfThePublishedExample) {
  const StrategyLimits limits{4, 16, 0};
  const auto plan = Plan({"lm_infinite", {{"num_sinks", 1}, {"window", 4}}}, limits);
  EXPECT_THAT(ExpandPlan(plan, 6, {}),
              ElementsAre(VisibleKey{0, 4}, VisibleKey{3, 3}, VisibleKey{4, 2}, VisibleKey{5, 1},
                          VisibleKey{6, 0}));
}

TEST(LmInfinite, SeesASinkInsideTheWindowOnceAtItsTrueDistance) {
  const auto plan =
      Plan({"lm_infinite", {{"num_sinks", 3}, {"window", 4}, {"distance_limit", 4}}}, kLlama2);
  EXPECT_THAT(ExpandPlan(plan, 4, {}),
              ElementsAre(VisibleKey{0, 4}, VisibleKey{1, 3}, VisibleKey{2, 2}, VisibleKey{3, 1},
                          VisibleKey{4, 0}));
}

TEST(LmInfinite, DefaultsToTheTrainedWindowTenSinksAndTheCeilingAtTheWindow) {
  EXPECT_THAT(
      First(Resolved({"lm_infinite", {}}, kLlama2), 3),
      ElementsAre(Given("num_sinks", 10), Given("window", 4096), Given("distance_limit", 4096)));
  EXPECT_EQ(Resolved({"lm_infinite", {{"window", 100}}}, kLlama2).Int("distance_limit"), 100);
}

// Query 11 of chunk size 2 lies in chunk 5; chunks 0, 4 and the pick 2 come before its own. The
// chosen chunks stand side by side: positions 0..5, the query at 6 + 1.
TEST(LongHeads, CompactsThePositionsOfTheChosenChunks) {
  AttentionPlan plan;
  plan.selection.chunk_tokens = 2;
  plan.selection.num_free_picks = 1;
  plan.stages.push_back(
      {.keys = AttentionStage::Keys::kChunks, .distance = AttentionStage::Distance::kCompacted});
  EXPECT_THAT(
      ExpandPlan(plan, 11, {2}),
      ElementsAre(VisibleKey{0, 7}, VisibleKey{1, 6}, VisibleKey{4, 5}, VisibleKey{5, 4},
                  VisibleKey{8, 3}, VisibleKey{9, 2}, VisibleKey{10, 1}, VisibleKey{11, 0}));
}

TEST(LongHeads, EqualsFullAttentionWhenEveryChunkIsChosen) {
  AttentionPlan plan;
  plan.selection.chunk_tokens = 2;
  plan.selection.num_free_picks = 3;
  plan.stages.push_back(
      {.keys = AttentionStage::Keys::kChunks, .distance = AttentionStage::Distance::kCompacted});
  AttentionPlan full;
  full.stages.emplace_back();
  EXPECT_EQ(ExpandPlan(plan, 11, {1, 2, 3}), ExpandPlan(full, 11, {}));
}

TEST(LongHeads, DefaultsAreThePapersForALlama2Window) {
  EXPECT_THAT(First(Resolved({"long_heads", {}}, kLlama2), 3),
              ElementsAre(Given("chunk_size", 256), Given("attention_length", 4096),
                          Given("begin_selective_length", 4096)));
  EXPECT_EQ(Resolved({"long_heads", {}}, {256, 16, 0}).Int("chunk_size"), 16);
  EXPECT_EQ(Resolved({"long_heads", {}}, {2048, 64, 0}).Int("chunk_size"), 128);
}

TEST(LongHeads, NeverLeavesTheTrainedWindow) {
  const auto plan = Plan({"long_heads", {}}, kLlama2);
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

// StreamingLLM, G=1, Rn=3, step 6: keys {0,3,4,5,6} at positions 0..4, the query at 4.
TEST(Streaming, CountsPositionsInTheCache) {
  const auto plan = Plan({"streaming", {{"num_sinks", 1}, {"recent_tokens", 3}}}, kLlama2);
  EXPECT_THAT(ExpandPlan(plan, 6, {}),
              ElementsAre(VisibleKey{0, 4}, VisibleKey{3, 3}, VisibleKey{4, 2}, VisibleKey{5, 1},
                          VisibleKey{6, 0}));
}

TEST(Streaming, TheFirstRowThatDiffersFromFullAttentionComesAfterTheCacheIsFull) {
  const auto plan = Plan({"streaming", {{"num_sinks", 2}, {"recent_tokens", 5}}}, kLlama2);
  const auto full = Plan({"full", {}}, kLlama2);
  for (int64_t i = 0; i <= 7; ++i) EXPECT_EQ(ExpandPlan(plan, i, {}), ExpandPlan(full, i, {})) << i;
  EXPECT_NE(ExpandPlan(plan, 8, {}), ExpandPlan(full, 8, {}));
}

TEST(SlidingWindow, SeesTheLastTokensOnly) {
  const auto plan = Plan({"sliding_window", {{"window", 3}}}, kLlama2);
  EXPECT_THAT(ExpandPlan(plan, 5, {}),
              ElementsAre(VisibleKey{3, 2}, VisibleKey{4, 1}, VisibleKey{5, 0}));
}

// ReRoPE, w=2, query 5: distances (0,1,2,2,2,2).
TEST(RectifiedRope, RectifiesDistances) {
  const auto plan = Plan({"rerope", {{"window", 2}}}, kLlama2);
  EXPECT_THAT(ExpandPlan(plan, 5, {}),
              ElementsAre(VisibleKey{0, 2}, VisibleKey{1, 2}, VisibleKey{2, 2}, VisibleKey{3, 2},
                          VisibleKey{4, 1}, VisibleKey{5, 0}));
}

// docs/methods.md, section 7.2: w=2, K=4, forced and candidate chunks by query chunk.
TEST(LongHeads, ForcesTheFirstAndThePreviousChunk) {
  ChunkSelection selection;
  selection.chunk_tokens = 2;
  for (int64_t own : {4, 5, 6, 7}) {
    const ChunkView view = ViewChunks(selection, 2 * own, true);
    EXPECT_EQ(view.num_forced, 2);
    EXPECT_EQ(view.forced[0], 0);
    EXPECT_EQ(view.forced[1], own - 1);
    EXPECT_EQ(view.candidates_begin, 1);
    EXPECT_EQ(view.candidates_end, own - 1);
  }
}

// The released code at a chunk boundary in decode: the complete own chunk is the forced last one.
TEST(LongHeads, ReplaysTheReleasedCodeAtAChunkBoundary) {
  ChunkSelection selection;
  selection.chunk_tokens = 2;
  selection.decode_boundary = true;
  const ChunkView view = ViewChunks(selection, 11, false);
  EXPECT_EQ(view.num_forced, 1);
  EXPECT_EQ(view.candidates_end, 5);
  EXPECT_EQ(view.own_tokens, 2);
  EXPECT_EQ(ViewChunks(selection, 10, false).num_forced, 2);
  EXPECT_EQ(ViewChunks(selection, 11, true).num_forced, 2);
}

TEST(Truncation, KeepsTheWantedEndAndRoomForTheAnswer) {
  const std::vector<int32_t> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  PromptTruncation cut{5, 100, PromptTruncation::Side::kLeft};
  EXPECT_THAT(TruncatePrompt(cut, tokens, 1), ElementsAre(5, 6, 7, 8, 9));
  cut.side = PromptTruncation::Side::kRight;
  EXPECT_THAT(TruncatePrompt(cut, tokens, 1), ElementsAre(0, 1, 2, 3, 4));
  cut.side = PromptTruncation::Side::kCenter;
  EXPECT_THAT(TruncatePrompt(cut, tokens, 1), ElementsAre(0, 1, 7, 8, 9));
  cut.reach_tokens = 6;
  EXPECT_THAT(TruncatePrompt(cut, tokens, 2), ElementsAre(0, 1, 8, 9));
  EXPECT_THAT(TruncatePrompt(cut, tokens, 4), ElementsAre(0, 9));
  cut = {20, 100, PromptTruncation::Side::kLeft};
  EXPECT_EQ(TruncatePrompt(cut, tokens, 1), tokens);
}

TEST(Parameters, ChoicesGoByTheirNames) {
  const auto plan =
      Plan({"long_heads", {{"scorer", "quest"}, {"share", "group"}, {"order", "random"}}}, kLlama2);
  EXPECT_EQ(plan.selection.scorer, ChunkSelection::Scorer::kQuest);
  EXPECT_EQ(plan.selection.share, ChunkSelection::Share::kGroup);
  EXPECT_EQ(plan.selection.order, ChunkSelection::Order::kRandom);
  EXPECT_EQ(Resolved({"long_heads", {}}, kLlama2).Choice("scorer"), "long_heads");
  EXPECT_EQ(Resolved({"truncation", {}}, kLlama2).Choice("side"), "left");
  EXPECT_EQ(Plan({"truncation", {{"side", "center"}}}, kLlama2).truncation.side,
            PromptTruncation::Side::kCenter);
}

TEST(Parameters, WhatIsWrongIsNamedWithWhatIsKnown) {
  EXPECT_EQ(Refusal({"long_heads", {{"scorer", "best"}}}, kLlama2),
            "long_heads.scorer is 'best', must be one of long_heads, mean_key, quest, "
            "representatives");
  EXPECT_EQ(Refusal({"long_heads", {{"scorer", 3}}}, kLlama2),
            "long_heads.scorer is 3, must be one of long_heads, mean_key, quest, representatives");
  EXPECT_EQ(Refusal({"long_heads", {{"drop_first_chunk", 2}}}, kLlama2),
            "long_heads.drop_first_chunk is 2, must be true or false");
  EXPECT_EQ(Refusal({"sliding_window", {{"window", 1.5}}}, kLlama2),
            "sliding_window.window is 1.5, must be a whole number in [1, 4096] for this model");
  EXPECT_EQ(Refusal({"sliding_window", {{"window", "all"}}}, kLlama2),
            "sliding_window.window is 'all', must be a whole number in [1, 4096] for this model");
}

// As a NamedMethod gives them, which knows numbers only.
TEST(Parameters, NumbersStandForFlagsAndWholeNumbers) {
  const auto spec =
      Resolved({"long_heads", {{"chunk_size", 128.0}, {"drop_first_chunk", 1.0}}}, kLlama2);
  EXPECT_EQ(spec.Int("chunk_size"), 128);
  EXPECT_TRUE(spec.Flag("drop_first_chunk"));
  EXPECT_EQ(spec,
            Resolved({"long_heads", {{"chunk_size", 128}, {"drop_first_chunk", true}}}, kLlama2));
}

// Tables of rotations must not grow with the text where distances do not.
TEST(RotationReach, IsTheLargestDistanceAndNotThePosition) {
  const auto reach = [](const StrategySpec& spec, int64_t position) {
    const AttentionPlan plan = Plan(spec, kLlama2);
    SequenceSlice slice;
    slice.plan = &plan;
    slice.first_position = position;
    slice.num_rows = 10;
    return RotationReach(slice, CocaQuery::kNone);
  };
  const int64_t far = 10'000'000;
  EXPECT_EQ(reach({"full", {}}, far), far + 9);
  EXPECT_EQ(reach({"long_heads", {}}, far), 4096);
  EXPECT_EQ(reach({"long_heads", {{"begin_selective_length", 4096}}}, 1000), 1009);
  EXPECT_EQ(reach({"lm_infinite", {}}, far), 4096);
  EXPECT_EQ(reach({"streaming", {}}, far), 4095);
  EXPECT_EQ(reach({"rerope", {}}, far), 4095);
}

TEST(CheckPlan, RefusesWhatBackendsHaveNoRoomFor) {
  const auto fault = [](const AttentionPlan& plan) {
    return std::string(CheckPlan(plan, kLlama2.page_tokens).message());
  };
  for (const AttentionStrategy* strategy : AllStrategies()) {
    EXPECT_EQ(fault(Plan({strategy->name(), {}}, kLlama2)), "") << strategy->name();
  }
  AttentionPlan plan = Plan({"full", {}}, kLlama2);
  plan.stages.resize(kMaxStages + 1);
  EXPECT_EQ(CheckPlan(plan, 64).code(), absl::StatusCode::kInternal);
  EXPECT_THAT(fault(plan), HasSubstr("has 5 stages, must have 1 to 4"));
  plan = Plan({"long_heads", {}}, kLlama2);
  EXPECT_THAT(std::string(CheckPlan(plan, 192).message()), HasSubstr("whole pages of 192"));
  plan.stages.pop_back();
  EXPECT_THAT(fault(plan), HasSubstr("one stage of chunks"));
  plan = Plan({"rerope", {}}, kLlama2);
  plan.key_form = KeyForm::kPageRotated;
  EXPECT_THAT(fault(plan), HasSubstr("stored rotated"));
}

// Each kind of keys is read at the distances that its methods have; at others a backend would leave
// the query where it is, and nobody would notice.
TEST(CheckPlan, RefusesDistancesAtWhichNoBackendReadsSuchKeys) {
  using Distance = AttentionStage::Distance;
  const auto fault = [](const char* strategy, ParamList params, size_t stage, Distance distance) {
    AttentionPlan plan = Plan({strategy, std::move(params)}, kLlama2);
    plan.stages[stage].distance = distance;
    return std::string(CheckPlan(plan, kLlama2.page_tokens).message());
  };
  EXPECT_THAT(fault("streaming", {}, 1, Distance::kTrue),
              HasSubstr("sinks at their true distance"));
  EXPECT_THAT(fault("full", {}, 0, Distance::kClamped), HasSubstr("pages at a clamped distance"));
  EXPECT_THAT(fault("long_heads", {}, 1, Distance::kTrue),
              HasSubstr("chunks at their true distance"));
  EXPECT_THAT(fault("lm_infinite", {{"top_tokens", int64_t{5}}}, 2, Distance::kCompacted),
              HasSubstr("chosen tokens at a compacted distance"));
}

TEST(StrategyRegistry, NamesTheKnownStrategiesForAnUnknownOne) {
  EXPECT_THAT(
      Refusal({"magic", {}}, kLlama2),
      HasSubstr("full, truncation, sliding_window, streaming, lm_infinite, long_heads, rerope"));
}

}  // namespace
}  // namespace folio
