// What a step takes of the device's memory, and what happens when there is none.
#include "engine/backend/cuda/emulated_runtime.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 256;
const AttentionShape kShape = {.name = "bf16", .trained_length = 160};

class Workspace : public testing::Test {
 protected:
  static AttentionPlan Plan(const std::string& strategy, int64_t top_tokens = 0) {
    ParamList params;
    if (top_tokens > 0) params = {{"top_tokens", top_tokens}, {"top_from_layer", 0}};
    const auto spec =
        ResolveAttention({{strategy, params}, {"plain", {}}}, {}, kShape.model(), {2000, false});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, kShape.model(), kMaxRows);
  }
  // The same random step on the CPU and on the device.
  void StepBoth(const std::vector<AttentionRig::Part>& parts) {
    int rows = 0;
    for (const auto& part : parts) rows += part.count;
    const int64_t width = (kShape.num_heads + 2 * kShape.num_kv_heads) * kShape.head_dim;
    std::vector<std::vector<float>> qkv;
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      qkv.push_back(RandomFloats(rows * width, &random_));
    }
    EXPECT_LE(RelativeError(tested_.Step(parts, qkv), reference_.Step(parts, qkv)), 1e-2);
  }
  int Add(const AttentionPlan& plan) {
    reference_.AddStream(plan);
    return tested_.AddStream(plan);
  }

  SaysTestSeed seed_;
  std::mt19937_64 random_{TestSeed()};
  AttentionRig reference_{kShape, ReferenceBackend(), kMaxRows};
  AttentionRig tested_{kShape, NewTestBackend(), kMaxRows};
};

TEST_F(Workspace, IsTakenBeforeAStepRuns) {
  int64_t before = 0;
  tested_.on_reserved = [&] { before = cuda::emulated.num_allocations; };
  for (const char* strategy : {"full", "long_heads", "lm_infinite"}) Add(Plan(strategy));
  Add(Plan("lm_infinite", 40));
  const auto step = [&](int rows) {
    StepBoth({{0, rows}, {1, rows}, {2, rows}, {3, rows}});
    EXPECT_EQ(cuda::emulated.num_allocations, before) << rows << " rows of each";
  };
  for (int n = 0; n < 4; ++n) step(64);
  for (int n = 0; n < 3; ++n) step(1);
}

TEST_F(Workspace, ThatIsNotThereFailsOnlyTheSliceThatNeedsIt) {
  const int stream = Add(Plan("full"));
  StepBoth({{stream, 100}});
  const AttentionPlan greedy = Plan("lm_infinite", 100);
  SequenceSlice slice;
  slice.num_rows = 100;
  slice.plan = &greedy;
  Backend* backend = tested_.backend();
  cuda::emulated.memory_bytes = cuda::emulated.allocated_bytes + (64 << 10);
  const absl::Status refused = backend->Reserve(slice, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("cannot allocate"), std::string::npos) << refused;
  EXPECT_TRUE(backend->status().ok()) << backend->status();
  StepBoth({{stream, 60}});
  StepBoth({{stream, 1}});
  cuda::emulated.memory_bytes = int64_t{1} << 30;
  EXPECT_TRUE(backend->Reserve(slice, true).ok());
}

}  // namespace
}  // namespace folio::test
