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

TEST(WorkCosts, AnswersShareTheWeightsAndReadTheirOwnKeys) {
  const WorkCosts costs{.weights = 60, .attended_by_answer = 0.1};
  EXPECT_DOUBLE_EQ(costs.OfAnswer(FullPlan(), 99, 1), 60 + 10);
  EXPECT_DOUBLE_EQ(costs.OfAnswer(FullPlan(), 99, 6), 10 + 10);
}

}  // namespace
}  // namespace folio
