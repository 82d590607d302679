// The attention verbs of the backend under test (CUDA, or an instruction set of the CPU) against
// fp32 arithmetic on the CPU, on random queries, keys and values: every kind of plan in one batch,
// prompts in uneven pieces, then answers token by token.
#include <cmath>
#include <map>

#include "engine/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 512;

// Long enough for two free picks of LongHeads.
AttentionShape Shape(const char* name, int head_dim, int num_heads, int num_kv_heads,
                     int page_tokens, DType dtype = DType::kBf16, bool alibi = false) {
  return {name,        head_dim, num_heads, num_kv_heads,
          page_tokens, dtype,    alibi,     page_tokens == 16 ? 160 : 6 * page_tokens};
}
const AttentionShape kShapes[] = {
    Shape("bf16_32_page16", 32, 4, 2, 16),
    Shape("bf16_64_group8_page16", 64, 8, 1, 16),
    Shape("bf16_128_page32", 128, 2, 1, 32),
    Shape("bf16_alibi_page16", 32, 4, 2, 16, DType::kBf16, true),
    Shape("bf16_48_plain", 48, 4, 2, 16),
    Shape("fp32_32", 32, 4, 2, 16, DType::kF32),
};
// Longer texts and larger pages, for a GPU, the CPU and ./dev soak.
const AttentionShape kLargeShapes[] = {
    Shape("bf16_32_page64", 32, 3, 1, 64),
    Shape("bf16_64_group8", 64, 8, 1, 64),
    Shape("bf16_128_mha", 128, 2, 2, 64),
    Shape("bf16_128_page128", 128, 2, 1, 128),
    Shape("bf16_256", 256, 2, 1, 64),
    Shape("bf16_group20", 32, 20, 1, 16),
    Shape("bf16_alibi", 32, 4, 2, 64, DType::kBf16, true),
    Shape("bf16_48_page32", 48, 4, 2, 32),
    Shape("fp32_128_group4", 128, 4, 1, 64, DType::kF32),
};

struct Plan {
  std::string strategy;
  ParamList params;
  std::string position;
};
const Plan kPlans[] = {
    {"full", {}, "plain"},
    {"sliding_window", {}, "plain"},
    {"streaming", {}, "plain"},
    {"lm_infinite", {}, "plain"},
    {"lm_infinite", {{"top_tokens", 5}, {"top_from_layer", 1}}, "plain"},
    {"long_heads", {}, "plain"},
    {"long_heads", {{"scorer", "quest"}, {"share", "group"}}, "plain"},
    {"long_heads", {{"prompt_skips_self", 1}, {"decode_boundary", 1}}, "plain"},
    {"full", {}, "entropy_abf"},
    {"rerope", {}, "plain"},
};

class AttentionParity : public testing::TestWithParam<AttentionShape> {
 protected:
  AttentionParity()
      : reference_(GetParam(), ReferenceBackend(), kMaxRows),
        tested_(GetParam(), NewTestBackend(), kMaxRows) {}

  // Adds a stream of the plan to both; false if it is not for this kind of model.
  bool AddStream(const Plan& plan, int64_t prompt_tokens) {
    const AttentionModel model = GetParam().model();
    const auto spec = ResolveAttention({{plan.strategy, plan.params}, {plan.position, {}}}, {},
                                       model, {2000, false});
    if (!spec.ok()) return false;
    const AttentionPlan made = PlanFor(*spec, model, prompt_tokens);
    reference_.AddStream(made);
    names_.push_back(plan.strategy + "+" + plan.position);
    prompts_.push_back(prompt_tokens);
    chooses_.push_back(made.selection.enabled() || made.top_tokens.count > 0);
    return tested_.AddStream(made) + 1 == static_cast<int>(names_.size());
  }

  void Step(const std::vector<AttentionRig::Part>& parts) {
    const AttentionShape& shape = GetParam();
    int rows = 0;
    for (const auto& part : parts) rows += part.count;
    const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    std::vector<std::vector<float>> qkv;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      qkv.push_back(RandomFloats(rows * width, &random_));
    }
    const std::vector<float> expected = reference_.Step(parts, qkv);
    const std::vector<float> got = tested_.Step(parts, qkv);
    const int64_t row_floats = int64_t{shape.num_heads} * shape.head_dim;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      int64_t begin = layer * rows * row_floats;
      for (const auto& part : parts) {
        const int64_t end = begin + part.count * row_floats;
        const double error = ErrorBesideTies({got.begin() + begin, got.begin() + end},
                                             {expected.begin() + begin, expected.begin() + end},
                                             chooses_[part.stream]);
        worst_ = std::max(worst_, error);
        EXPECT_LE(error, Limit()) << names_[part.stream] << ", layer " << layer << ", "
                                  << part.count << " rows of " << rows;
        begin = end;
      }
    }
    for (const auto& part : parts) ExpectEqualPicks(part.stream);
  }

  // The relative error. Where a plan chooses, single outputs (of a row and a head) that are far off
  // are counted instead: the choice may have been between two that nearly tie.
  double ErrorBesideTies(std::vector<float> got, std::vector<float> expected, bool chooses) {
    const int64_t dim = GetParam().head_dim;
    for (size_t at = 0; chooses && at < got.size(); at += dim, ++num_chosen_) {
      const std::vector<float> one(got.begin() + at, got.begin() + at + dim);
      if (RelativeError(one, {expected.begin() + at, expected.begin() + at + dim}) <= 2 * Limit()) {
        continue;
      }
      ++num_apart_;
      std::fill_n(got.begin() + at, dim, 0.0f);
      std::fill_n(expected.begin() + at, dim, 0.0f);
    }
    return RelativeError(got, expected);
  }

  // The same chunks wherever the last one taken is clear of rounding.
  void ExpectEqualPicks(int stream) {
    const auto& expected = reference_.picks(stream).picks;
    const auto& got = tested_.picks(stream).picks;
    ASSERT_EQ(expected.size(), got.size());
    int differ = 0;
    for (size_t n = 0; n < expected.size(); ++n) {
      if (expected[n].chunk == got[n].chunk) {
        EXPECT_NEAR(expected[n].score, got[n].score, 1e-2f * (1 + std::abs(expected[n].score)));
      } else if (std::abs(expected[n].score - got[n].score) >
                 1e-2f * (1 + std::abs(expected[n].score))) {
        ++differ;
      }
    }
    EXPECT_EQ(differ, 0) << names_[stream];
  }

  double Limit() const { return GetParam().dtype == DType::kF32 ? 1e-5 : 1e-2; }

  SaysTestSeed seed_;
  std::mt19937_64 random_{TestSeed()};
  AttentionRig reference_;
  AttentionRig tested_;
  std::vector<std::string> names_;
  std::vector<int64_t> prompts_;
  std::vector<bool> chooses_;
  int num_chosen_ = 0;
  int num_apart_ = 0;
  double worst_ = 0;
};

TEST_P(AttentionParity, OfAMixedBatch) {
  const int64_t length = GetParam().trained_length;
  int64_t prompt = length + 70;
  for (const Plan& plan : kPlans) prompt += AddStream(plan, prompt) ? 13 : 0;
  const int num_streams = static_cast<int>(names_.size());
  ASSERT_GE(num_streams, 5);
  std::vector<int64_t> done(num_streams, 0);
  // Two or three streams a step, in pieces that fit neither pages nor tiles.
  const int pieces[] = {170, 33, 129, 15, 64, 90, 1, 200};
  int turn = 0;
  for (bool left = true; left;) {
    left = false;
    std::vector<AttentionRig::Part> parts;
    int rows = 0;
    for (int n = 0; n < num_streams && rows < 300; ++n) {
      const int stream = (turn + n) % num_streams;
      const int count = static_cast<int>(
          std::min<int64_t>(pieces[(turn + n) % 8], prompts_[stream] - done[stream]));
      if (count == 0) continue;
      parts.push_back({stream, count});
      done[stream] += count;
      rows += count;
    }
    turn += 3;
    if (!parts.empty()) Step(parts);
    for (int n = 0; n < num_streams; ++n) left = left || done[n] < prompts_[n];
  }
  // Answers of all, then of some: other buckets, and steps that were recorded.
  std::vector<AttentionRig::Part> decode;
  for (int n = 0; n < num_streams; ++n) decode.push_back({n, 1});
  for (int step = 0; step < 6; ++step) Step(decode);
  decode.resize(3);
  for (int step = 0; step < 4; ++step) Step(decode);
  EXPECT_LE(num_apart_, num_chosen_ / 100);
  std::printf("    worst relative error %.2g, %d of %d outputs of a choice apart\n", worst_,
              num_apart_, num_chosen_);
}

std::string ShapeName(const testing::TestParamInfo<AttentionShape>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionParity, testing::ValuesIn(kShapes), ShapeName);
INSTANTIATE_TEST_SUITE_P(LargeShapes, AttentionParity, testing::ValuesIn(kLargeShapes), ShapeName);

}  // namespace
}  // namespace folio::test
