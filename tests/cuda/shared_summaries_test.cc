// Heads of a group share the summaries that are made of keys alone. They choose, and attend, as
// heads do of which each has a KV head, and so summaries, of its own with the same numbers.
#include "engine/attention/attention_registry.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 512;
constexpr int kHeads = 8;
constexpr int kHeadDim = 32;
constexpr int kLayers = 2;

AttentionShape Shape(int num_kv_heads, DType dtype) {
  return {.name = "shared",
          .head_dim = kHeadDim,
          .num_heads = kHeads,
          .num_kv_heads = num_kv_heads,
          .page_tokens = 16,
          .dtype = dtype,
          .trained_length = 96,
          .num_layers = kLayers};
}

// Rows of queries, keys and values with each KV head as often as query heads share it.
std::vector<float> WithOwnKeys(const std::vector<float>& qkv, int num_kv_heads) {
  constexpr int kQueries = kHeads * kHeadDim;
  const int width = kQueries + 2 * num_kv_heads * kHeadDim;
  std::vector<float> wide;
  for (size_t row = 0; row < qkv.size(); row += width) {
    const auto numbers = qkv.begin() + static_cast<std::ptrdiff_t>(row);
    wide.insert(wide.end(), numbers, numbers + kQueries);
    for (int part = 0; part < 2; ++part) {
      for (int head = 0; head < kHeads; ++head) {
        const int kv_head = part * num_kv_heads + head * num_kv_heads / kHeads;
        const auto from = numbers + kQueries + kv_head * kHeadDim;
        wide.insert(wide.end(), from, from + kHeadDim);
      }
    }
  }
  return wide;
}

struct Case {
  const char* scorer;
  const char* share;
  int num_kv_heads;
  DType dtype;
};

class SharedSummaries : public testing::TestWithParam<Case> {
 protected:
  SharedSummaries()
      : reference_(Shape(kHeads, GetParam().dtype), ReferenceBackend(), kMaxRows),
        on_cpu_(Shape(GetParam().num_kv_heads, GetParam().dtype), ReferenceBackend(), kMaxRows),
        tested_(Shape(GetParam().num_kv_heads, GetParam().dtype), NewTestBackend(), kMaxRows) {}

  void AddStreams(int64_t prompt_tokens) {
    for (AttentionRig* rig : {&reference_, &on_cpu_, &tested_}) {
      const AttentionModel model = Shape(kHeads, GetParam().dtype).model();
      const auto spec = ResolveAttention(
          {{"long_heads",
            {{"chunk_size", 16}, {"scorer", GetParam().scorer}, {"share", GetParam().share}}},
           {"plain", {}}},
          {}, model, {4000, false});
      ASSERT_TRUE(spec.ok()) << spec.status();
      rig->AddStream(PlanFor(*spec, model, prompt_tokens));
    }
  }

  void ExpectEqualStep(int count) {
    const int width = (kHeads + 2 * GetParam().num_kv_heads) * kHeadDim;
    std::vector<std::vector<float>> qkv;
    std::vector<std::vector<float>> wide;
    for (int layer = 0; layer < kLayers; ++layer) {
      qkv.push_back(RandomFloats(int64_t{count} * width, &random_));
      wide.push_back(WithOwnKeys(qkv.back(), GetParam().num_kv_heads));
    }
    const std::vector<float> expected = reference_.Step({{0, count}}, wide);
    EXPECT_EQ(on_cpu_.Step({{0, count}}, qkv), expected);
    EXPECT_LE(RelativeError(tested_.Step({{0, count}}, qkv), expected),
              GetParam().dtype == DType::kBf16 ? 1e-2 : 1e-4);
    for (const AttentionRig* rig : {&on_cpu_, &tested_}) ExpectEqualPicks(rig->picks(0));
  }

  void ExpectEqualPicks(const ChunkPicks& got) const {
    const ChunkPicks& expected = reference_.picks(0);
    ASSERT_EQ(got.picks.size(), expected.picks.size());
    for (size_t n = 0; n < expected.picks.size(); ++n) {
      ASSERT_EQ(got.picks[n].chunk, expected.picks[n].chunk) << n;
      ASSERT_NEAR(got.picks[n].score, expected.picks[n].score, 1e-4) << n;
    }
  }

  std::mt19937_64 random_{TestSeed() + 29};
  AttentionRig reference_;
  AttentionRig on_cpu_;
  AttentionRig tested_;
};

// Chunks of some frames, of which the last one has tiles that are not there yet.
TEST_P(SharedSummaries, ChooseAsIfEachHeadHadItsOwn) {
  constexpr int kPrompt = 1330;
  ASSERT_NO_FATAL_FAILURE(AddStreams(kPrompt));
  for (const int count : {500, 17, 500, 313, 1, 1, 1}) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqualStep(count));
  }
  const auto num_frames = [](const AttentionRig& rig) {
    return rig.store().used_summary_bytes() / rig.store().geometry().summary_frame_bytes();
  };
  // 83 chunks.
  const int group = kHeads / GetParam().num_kv_heads;
  const int vectors = std::string(GetParam().scorer) == "quest" ? 2 : 1;
  EXPECT_EQ(num_frames(reference_), 6 * vectors);
  EXPECT_EQ(num_frames(on_cpu_), (6 + group - 1) / group * vectors);
}

INSTANTIATE_TEST_SUITE_P(Cases, SharedSummaries,
                         testing::Values(Case{"mean_key", "none", 4, DType::kF32},
                                         Case{"mean_key", "none", 1, DType::kBf16},
                                         Case{"mean_key", "layer", 2, DType::kF32},
                                         Case{"quest", "none", 2, DType::kF32},
                                         Case{"quest", "none", 4, DType::kBf16},
                                         Case{"quest", "layers", 4, DType::kF32}),
                         [](const auto& info) {
                           return std::string(info.param.scorer) + "_" + info.param.share + "_" +
                                  std::to_string(info.param.num_kv_heads);
                         });

}  // namespace
}  // namespace folio::test
