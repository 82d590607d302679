// Pages in the host's memory below the device: whatever the cache of their slices holds, the
// results are those of a device that holds all pages, bit for bit.
#include "engine/attention/attention_registry.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int64_t kHome = int64_t{8} << 20;
// More than any step has: room in frames for what a window and an unfinished chunk hold.
constexpr int kMaxRows = 1024;

struct Plan {
  const char* strategy;
  ParamList params;
};
const Plan kPlans[] = {
    {"full", {}},       {"rerope", {}},
    {"streaming", {}},  {"lm_infinite", {{"top_tokens", 5}, {"top_from_layer", 1}}},
    {"long_heads", {}}, {"long_heads", {{"scorer", "quest"}, {"share", "group"}}},
};

struct Case {
  AttentionShape shape;
  int64_t num_slots = 0;
  bool keeps_some = false;  // from a step to the next
  int64_t kv_bytes = 0;
};

// The device's memory for pages: frames for one step, and so many slots or a few more.
int64_t KvBytes(const AttentionShape& shape, int64_t num_slots) {
  const KvGeometry g = shape.geometry();
  const int64_t page = FramePool::RoundedBytes(g.frame_bytes());
  const int64_t tables = kHome / page * (g.num_slices() * 5 + g.num_kv_heads * 8);
  return (kMaxRows / g.page_tokens + 2) * page + tables + (num_slots + 2) * (g.slice_bytes() + 20);
}

Case MakeCase(const char* name, int head_dim, int num_heads, int num_kv_heads, DType dtype,
              bool alibi, int64_t num_slots, bool keeps_some) {
  Case result = {
      {name, head_dim, num_heads, num_kv_heads, 16, dtype, alibi, 160}, num_slots, keeps_some};
  result.kv_bytes = KvBytes(result.shape, num_slots);
  return result;
}

class HostTierTest : public testing::TestWithParam<Case> {
 protected:
  HostTierTest()
      : all_on_device_(GetParam().shape, NewTestBackend(), kMaxRows),
        tiered_(GetParam().shape, NewTestBackend(), kMaxRows, GetParam().kv_bytes, kHome) {}

  // -1: the plan is not for this kind of model.
  int AddStream(const Plan& plan, int64_t prompt_tokens) {
    const AttentionModel model = GetParam().shape.model();
    const auto spec =
        ResolveAttention({{plan.strategy, plan.params}, {"plain", {}}}, {}, model, {2000, false});
    if (!spec.ok()) return -1;
    const AttentionPlan made = PlanFor(*spec, model, prompt_tokens);
    all_on_device_.AddStream(made);
    return tiered_.AddStream(made);
  }

  void ExpectEqualStep(const std::vector<AttentionRig::Part>& parts) {
    const AttentionShape& shape = GetParam().shape;
    int rows = 0;
    for (const auto& part : parts) rows += part.count;
    const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    std::vector<std::vector<float>> qkv;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      qkv.push_back(RandomFloats(rows * width, &random_));
    }
    const std::vector<float> expected = all_on_device_.Step(parts, qkv);
    ASSERT_TRUE(all_on_device_.backend()->status().ok()) << all_on_device_.backend()->status();
    const std::vector<float> got = tiered_.Step(parts, qkv);
    ASSERT_TRUE(tiered_.backend()->status().ok()) << tiered_.backend()->status();
    ASSERT_EQ(got, expected);
    const SliceReads reads = tiered_.store().reads();
    EXPECT_EQ(reads.bytes_in, reads.misses * shape.geometry().slice_bytes());
  }

  std::mt19937_64 random_{TestSeed() + 7};
  AttentionRig all_on_device_;
  AttentionRig tiered_;
};

TEST_P(HostTierTest, GivesTheBitsOfADeviceWithAllPages) {
  constexpr int kPrompt = 330;
  std::vector<int> streams;
  for (const Plan& plan : kPlans) {
    const int stream = AddStream(plan, kPrompt);
    if (stream >= 0) streams.push_back(stream);
  }
  // Prompts in uneven pieces beside each other, then answers, of which steps are recorded.
  for (const int count : {150, 37, 143}) {
    for (size_t n = 0; n < streams.size(); n += 2) {
      std::vector<AttentionRig::Part> parts = {{streams[n], count}};
      if (n + 1 < streams.size()) parts.push_back({streams[n + 1], count});
      ASSERT_NO_FATAL_FAILURE(ExpectEqualStep(parts));
    }
  }
  std::vector<AttentionRig::Part> answers;
  for (const int stream : streams) answers.push_back({stream, 1});
  for (int n = 0; n < 5; ++n) ASSERT_NO_FATAL_FAILURE(ExpectEqualStep(answers));
  const SliceReads reads = tiered_.store().reads();
  EXPECT_EQ(reads.hits > 0, GetParam().keeps_some);
  EXPECT_GT(reads.misses, 0);
  const int64_t slots = GetParam().num_slots * GetParam().shape.geometry().slice_bytes();
  EXPECT_GT(tiered_.store().used_home_bytes(), slots) << "all of it has room in the cache";
}

// A page that has left gives its number to another one: what the cache has of it is not read.
TEST_P(HostTierTest, ForgetsPagesThatAreFreed) {
  const int stream = AddStream(kPlans[0], 200);
  const int other = AddStream(kPlans[0], 200);
  for (int round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqualStep({{stream, 150}}));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualStep({{other, 20}}));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualStep({{stream, 60}}));
    for (int n = 0; n < 3; ++n) ASSERT_NO_FATAL_FAILURE(ExpectEqualStep({{stream, 1}}));
    all_on_device_.Restart(stream);
    tiered_.Restart(stream);
  }
  tiered_.Restart(other);
  EXPECT_EQ(tiered_.store().used_home_bytes(), 0);
  EXPECT_EQ(tiered_.store().used_page_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HostTierTest,
    testing::Values(MakeCase("bf16_room", 32, 4, 2, DType::kBf16, false, 300, true),
                    MakeCase("bf16_little_room", 32, 4, 2, DType::kBf16, false, 20, false),
                    MakeCase("fp32_plain", 48, 4, 2, DType::kF32, false, 60, true),
                    MakeCase("bf16_alibi", 32, 4, 2, DType::kBf16, true, 60, true),
                    MakeCase("bf16_64_group8", 64, 8, 1, DType::kBf16, false, 30, true)),
    [](const auto& info) { return info.param.shape.name; });

}  // namespace
}  // namespace folio::test
