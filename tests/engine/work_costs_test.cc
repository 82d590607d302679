#include "engine/sched/work_costs.h"

#include <gtest/gtest.h>

#include "engine/attention/attention_registry.h"

namespace folio {
namespace {

AttentionPlan FullPlan() {
  AttentionPlan plan;
  plan.stages.emplace_back();
  return plan;
}

AttentionPlan LongHeadsPlan() {
  AttentionModel model;
  model.limits = {256, 4, 0};
  model.rope.head_dim = model.rope.rotary_dim = 16;
  model.rope.trained_length = model.rope.original_length = 256;
  AttentionSpec spec;
  spec.strategy.name = "long_heads";
  return PlanFor(*ResolveAttention(spec, {}, model, {}), model);
}

TEST(WorkCosts, FollowFromTheShapeOfTheModel) {
  const ModelShape shape{.num_layers = 3,
                         .hidden_size = 64,
                         .intermediate_size = 128,
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .head_dim = 16};
  // Of one layer: 64 * (64 + 64 of queries and output, 2 * 32 of keys and values, 3 * 128) in
  // products, 2 * 64 with each token that is attended to.
  const WorkCosts costs = WorkCosts::Of(shape, 6400, 10);
  EXPECT_DOUBLE_EQ(costs.attended, 128.0 / (64 * (128 + 64 + 384)));
  EXPECT_DOUBLE_EQ(costs.attended_by_answer, 64.0 * 10 / 6400);
}

TEST(WorkCosts, GrowWithWhatAPromptAttendsTo) {
  const WorkCosts costs{.attended = 0.01};
  const AttentionPlan plan = FullPlan();
  EXPECT_DOUBLE_EQ(costs.OfPromptToken(plan, 99), 2);
  double sum = 0;
  for (int64_t position = 100; position < 301; ++position) {
    sum += costs.OfPromptToken(plan, position);
  }
  EXPECT_NEAR(costs.OfPrompt(plan, 100, 301), sum, 1e-9);
  EXPECT_EQ(costs.OfPrompt(plan, 100, 100), 0);
}

// Chunks 0 and the last before its own are seen anyway, and those between are its choice: each one
// is scored by half the products of a key, and a picked key is counted twice.
TEST(WorkCosts, GrowWithWhatAQueryChoosesFrom) {
  const AttentionPlan plan = LongHeadsPlan();
  const int64_t width = plan.selection.chunk_tokens;
  const int64_t picks = plan.selection.num_free_picks;
  const WorkCosts costs{.attended = 1};
  EXPECT_EQ(costs.OfPromptToken(plan, width * (picks + 2) - 1), 1 + width * (picks + 2));
  for (const int64_t own : {picks + 3, picks + 40}) {
    const int64_t candidates = own - 2;
    const auto visible = static_cast<double>((picks + 2) * width + 1);
    EXPECT_EQ(
        costs.OfPromptToken(plan, own * width),
        1 + visible + static_cast<double>(picks * width) + 0.5 * static_cast<double>(candidates));
  }
}

TEST(WorkCosts, OfAPromptAreThoseOfItsTokens) {
  const AttentionPlan plan = LongHeadsPlan();
  const WorkCosts costs{.attended = 0.0013};
  for (const int64_t end : {1, 2, 3, 5, 100, 1000, 32'000}) {
    double sum = 0;
    for (int64_t position = 0; position < end; ++position) {
      sum += costs.OfPromptToken(plan, position);
    }
    EXPECT_NEAR(costs.OfPrompt(plan, 0, end) / sum, 1, 0.04) << end;
  }
}

TEST(WorkCosts, AnswersShareTheWeightsAndReadTheirOwnKeys) {
  const WorkCosts costs{.weights = 60, .attended_by_answer = 0.1};
  EXPECT_DOUBLE_EQ(costs.OfAnswer(FullPlan(), 99, 1), 60 + 10);
  EXPECT_DOUBLE_EQ(costs.OfAnswer(FullPlan(), 99, 6), 10 + 10);
}

}  // namespace
}  // namespace folio
