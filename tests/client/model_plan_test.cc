#include "client/plan/model_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace folio::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig Llama2() {
  ModelConfig config;
  config.shape = {.num_layers = 32,
                  .hidden_size = 4096,
                  .intermediate_size = 11008,
                  .num_heads = 32,
                  .num_kv_heads = 32,
                  .head_dim = 128,
                  .vocab_size = 32000,
                  .trained_length = 4096};
  config.rope.head_dim = config.rope.rotary_dim = 128;
  config.rope.original_length = config.rope.trained_length = 4096;
  return config;
}

// Worked example of the scaling laws (docs/methods.md, section 10), and 512 KiB per token.
TEST(ModelPlan, GivesThePublishedNumbersOfLlama2) {
  const ModelPlan plan = PlanModel(Llama2(), {.target_tokens = 131072});
  EXPECT_EQ(plan.critical_dimension, 92);
  EXPECT_NEAR(plan.required_base, 1378414, 500);
  EXPECT_NEAR(plan.required_base_of_dimension, 1022122, 300);
  EXPECT_EQ(plan.kv_bytes_per_token, 512 << 10);
  EXPECT_EQ(plan.needs[3].strategy, "full");
  EXPECT_EQ(plan.needs[3].bytes, int64_t{64} << 30);
  EXPECT_EQ(plan.needs[5].strategy, "lm_infinite");
  EXPECT_EQ(plan.needs[5].bytes, (4096 + 10) * int64_t{512 << 10});
  EXPECT_EQ(plan.strategy, "long_heads");
  EXPECT_THAT(plan.warnings, IsEmpty());
}

// 8 bits: keys and values of 128 bytes, a scale of 4 per value and 128 of 4 per 64 keys, in each of
// 32 layers and heads.
TEST(ModelPlan, CountsIntegersAndTheirScales) {
  const ModelPlan plan = PlanModel(Llama2(), {.target_tokens = 131072, .kv_bits = 8});
  EXPECT_EQ(plan.kv_bytes_per_token, 32 * 32 * (2 * 128 + 4 + 8));
  EXPECT_EQ(plan.needs[3].bytes, 131072 * plan.kv_bytes_per_token);
  EXPECT_EQ(plan.needs[5].strategy, "lm_infinite");
  EXPECT_EQ(plan.needs[5].bytes, (4096 + 10) * int64_t{512 << 10});
  EXPECT_EQ(PlanModel(Llama2(), {.target_tokens = 131072, .kv_bits = 4}).kv_bytes_per_token,
            32 * 32 * (128 + 4 + 8));
}

TEST(ModelPlan, RecommendsByLengthAndMemory) {
  EXPECT_EQ(PlanModel(Llama2(), {.target_tokens = 4000}).strategy, "full");
  EXPECT_EQ(
      PlanModel(Llama2(), {.target_tokens = 131072, .kv_budget_bytes = int64_t{8} << 30}).strategy,
      "lm_infinite");
}

TEST(ModelPlan, RecommendsWhatKeepsTheWindowsOfLayers) {
  ModelConfig config = Llama2();
  config.positions = PositionKind::kByLayer;
  const ModelPlan plan = PlanModel(config, {.target_tokens = 131072});
  EXPECT_EQ(plan.strategy, "full");
  EXPECT_EQ(plan.critical_dimension, 92);
}

TEST(ModelPlan, WarnsOfASchemeThatDoesNotReach) {
  const ModelPlan yarn =
      PlanModel(Llama2(), {.target_tokens = 131072, .position = {"yarn", {{"factor", 8.0}}}});
  EXPECT_THAT(yarn.warnings, ElementsAre(HasSubstr("yarn reaches 32768 tokens")));
  const ModelPlan abf =
      PlanModel(Llama2(), {.target_tokens = 131072, .position = {"abf", {{"base", 500000.0}}}});
  ASSERT_EQ(abf.warnings.size(), 2u);
  EXPECT_THAT(abf.warnings[0], HasSubstr("abf reaches 78"));
  EXPECT_THAT(
      PlanModel(Llama2(), {.target_tokens = 8192, .position = {"linear", {{"factor", 2.0}}}})
          .warnings,
      IsEmpty());
}

}  // namespace
}  // namespace folio::plan
