#include "engine/runtime/memory_plan.h"

#include "absl/strings/str_cat.h"
#include "engine/kv/kv_store.h"
#include "engine/model/synthetic_model.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct Case {
  ModelConfig config = *SyntheticConfig("synthetic:llama-2-7b");
  KvGeometry geometry = KvGeometry::Make(config.shape, 64, DType::kBf16);
  MemoryPlanInputs inputs = {.available = 139 * kGiB,
                             .commits_at_once = true,
                             .workspace = kGiB,
                             .step_rows = 512,
                             .logit_rows = 256};
};

TEST(MemoryPlan, OfADeviceCountsEverythingAndFillsIt) {
  const Case c;
  const auto plan = PlanMemory(c.config, c.geometry, c.inputs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 6,738,415,616 parameters, of which 266,240 are in norms.
  EXPECT_EQ(plan->weights, (int64_t{6738415616} - 266240) * 2 + 266240 * 4);
  EXPECT_LE(plan->total(), plan->available);
  EXPECT_GE(plan->total(), plan->available * 9 / 10);
  EXPECT_EQ(plan->summaries, KvStore::SummaryPoolBytes(c.geometry, plan->kv_pages, true));
  EXPECT_NE(plan->ToString().find("weights 12.55 GiB"), std::string::npos) << plan->ToString();
}

TEST(MemoryPlan, OfTheHostLeavesRoomForOthers) {
  Case c;
  c.inputs.commits_at_once = false;
  const auto plan = PlanMemory(c.config, c.geometry, c.inputs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->summaries, 0);  // they share the budget of the pages
  EXPECT_NEAR(plan->kv_pages / double(c.inputs.available - plan->weights - plan->activations), 0.7,
              0.02);
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  Case c;
  c.inputs.kv_bytes = 130 * kGiB;
  auto plan = PlanMemory(c.config, c.geometry, c.inputs);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* part :
       {"weights 12.55 GiB", "KV pages 130.00 GiB", "> 139.00 GiB of", "lower --kv-bytes by"}) {
    EXPECT_NE(plan.status().message().find(part), std::string::npos) << plan.status();
  }
  c.inputs.kv_bytes = 0;
  c.inputs.available = 12 * kGiB;
  plan = PlanMemory(c.config, c.geometry, c.inputs);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(plan.status().message().find("a smaller model"), std::string::npos) << plan.status();
}

TEST(MemoryPlan, AChosenBudgetOfTheHostMustFitIntoItsLimitAndNotIntoWhatIsFreeNow) {
  Case c;
  c.inputs.commits_at_once = false;
  c.inputs.available = 16 * kGiB;
  c.inputs.limit = {40 * kGiB, "cgroup /a/b (memory.max)"};
  c.inputs.kv_bytes = 20 * kGiB;
  EXPECT_TRUE(PlanMemory(c.config, c.geometry, c.inputs).ok());
  c.inputs.kv_bytes = 30 * kGiB;
  const auto refused = PlanMemory(c.config, c.geometry, c.inputs).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"weights 12.55 GiB", "KV pages 30.00 GiB",
                           "> 40.00 GiB of cgroup /a/b (memory.max)", "lower --kv-bytes by"}) {
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused;
  }
  c.inputs.kv_bytes = 0;
  EXPECT_LE(PlanMemory(c.config, c.geometry, c.inputs)->total(), 16 * kGiB);
}

TEST(MemoryPlan, SmallAmountsAreInMiB) {
  MemoryPlan plan;
  plan.weights = 200 << 20;
  EXPECT_NE(plan.ToString().find("weights 200.00 MiB"), std::string::npos) << plan.ToString();
}

TEST(SyntheticModel, AnUnknownNameListsTheKnownOnes) {
  const auto config = SyntheticConfig("synthetic:gpt-5");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(config.status().message().find("llama-2-7b"), std::string::npos);
}

TEST(SyntheticModel, HasAsManyLayersAsAreAskedFor) {
  EXPECT_EQ(SyntheticConfig("synthetic:llama-2-7b/2")->shape.num_layers, 2);
  for (const char* name : {"/", "/0", "/33", "/two", "/2/2"}) {
    const auto config = SyntheticConfig(absl::StrCat("synthetic:llama-2-7b", name));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace folio
