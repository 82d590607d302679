// One stream of a model with few KV heads: threads take its pages apart by segments.
#include <cmath>

#include "engine/attention/attention_registry.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 512;
constexpr int kHeadDim = 32;
constexpr int kHeads = 4;
constexpr int kWidth = (kHeads + 2) * kHeadDim;
// More than two segments of 4,096 tokens.
constexpr int kPrompt = 9000;

AttentionShape Shape(int page_tokens) {
  return {.name = "mqa",
          .head_dim = kHeadDim,
          .num_heads = kHeads,
          .num_kv_heads = 1,
          .page_tokens = page_tokens,
          .dtype = DType::kF32,
          .trained_length = 8192,
          .num_layers = 1};
}

AttentionPlan Plan(const char* strategy, ParamList params, int page_tokens) {
  const AttentionModel model = Shape(page_tokens).model();
  const auto spec =
      ResolveAttention({{strategy, std::move(params)}, {"plain", {}}}, {}, model, {10000, false});
  return PlanFor(spec.value(), model, kPrompt);
}

std::unique_ptr<Backend> Threads(int count) {
  return CreateCpuBackend({.num_threads = count, .isa = BestFp32Isa()}).value();
}

// Feeds the same prompt and answer to several rigs, and keeps keys and values.
class Feeder {
 public:
  explicit Feeder(std::vector<AttentionRig*> rigs) : rigs_(std::move(rigs)) {}

  // The results of all rigs for the next `count` tokens.
  std::vector<std::vector<float>> Step(int count) {
    rows_ = RandomFloats(int64_t{count} * kWidth, &random_);
    for (int row = 0; row < count; ++row) {
      const auto kv = rows_.begin() + row * kWidth + kHeads * kHeadDim;
      kv_.insert(kv_.end(), kv, kv + 2 * kHeadDim);
    }
    std::vector<std::vector<float>> results;
    for (AttentionRig* rig : rigs_) results.push_back(rig->Step({{0, count}}, {rows_}));
    return results;
  }
  void Prefill() {
    for (int done = 0; done < kPrompt;) {
      const int count = std::min(kMaxRows, kPrompt - done);
      const auto results = Step(count);
      for (const auto& result : results) ASSERT_EQ(result, results[0]);
      done += count;
    }
  }
  // Full attention of the last token's query `head`, in double precision.
  std::vector<double> Attend(int head) const {
    const int64_t last = static_cast<int64_t>(kv_.size()) / (2 * kHeadDim) - 1;
    const float* q = &rows_[rows_.size() - kWidth + head * kHeadDim];
    std::vector<double> out(kHeadDim);
    double sum = 0;
    for (int64_t j = 0; j <= last; ++j) {
      const float* k = &kv_[j * 2 * kHeadDim];
      double score = 0;
      for (int m = 0; m < kHeadDim / 2; ++m) {
        const double theta = static_cast<float>(std::pow(10000.0, -2.0 * m / kHeadDim));
        const double angle = theta * static_cast<double>(last - j);
        const double x = q[m];
        const double y = q[m + kHeadDim / 2];
        const double a = k[m];
        const double b = k[m + kHeadDim / 2];
        score += (x * a + y * b) * std::cos(angle) + (x * b - y * a) * std::sin(angle);
      }
      const double weight = std::exp(score / std::sqrt(kHeadDim));
      sum += weight;
      for (int d = 0; d < kHeadDim; ++d) out[d] += weight * k[kHeadDim + d];
    }
    for (double& x : out) x /= sum;
    return out;
  }

 private:
  const std::vector<AttentionRig*> rigs_;
  std::mt19937_64 random_{TestSeed() + 31};
  std::vector<float> rows_;  // of the last step
  std::vector<float> kv_;    // [tokens][2][dim]
};

TEST(AttentionParts, AreFoldedToWhatAllTokensGive) {
  AttentionRig rig(Shape(64), Threads(1), kMaxRows);
  rig.AddStream(Plan("full", {}, 64));
  Feeder feeder({&rig});
  ASSERT_NO_FATAL_FAILURE(feeder.Prefill());
  const std::vector<float> got = feeder.Step(1)[0];
  for (int head = 0; head < kHeads; ++head) {
    const std::vector<double> expected = feeder.Attend(head);
    for (int d = 0; d < kHeadDim; ++d) {
      ASSERT_NEAR(got[head * kHeadDim + d], expected[d], 2e-5) << head << ", " << d;
    }
  }
}

struct Case {
  const char* strategy;
  ParamList params;
  int page_tokens = 64;
};

class PartsOfStrategies : public testing::TestWithParam<Case> {};

TEST_P(PartsOfStrategies, GiveTheSameBitsOnAnyNumberOfThreads) {
  const int page_tokens = GetParam().page_tokens;
  AttentionRig one(Shape(page_tokens), Threads(1), kMaxRows);
  AttentionRig two(Shape(page_tokens), Threads(2), kMaxRows);
  AttentionRig many(Shape(page_tokens), Threads(7), kMaxRows);
  const std::vector<AttentionRig*> rigs = {&one, &two, &many};
  for (AttentionRig* rig : rigs) {
    rig->AddStream(Plan(GetParam().strategy, GetParam().params, page_tokens));
  }
  Feeder feeder(rigs);
  ASSERT_NO_FATAL_FAILURE(feeder.Prefill());
  for (const int count : {1, 1, 5, 16, 1}) {
    const auto results = feeder.Step(count);
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PartsOfStrategies,
                         testing::Values(Case{"full", {}}, Case{"full", {}, 48},
                                         Case{"sliding_window", {{"window", 5000}}},
                                         Case{"lm_infinite",
                                              {{"window", 6000}, {"distance_limit", 6000}}},
                                         Case{"long_heads", {}}),
                         [](const auto& info) {
                           return std::string(info.param.strategy) +
                                  std::to_string(info.param.page_tokens);
                         });

}  // namespace
}  // namespace folio::test
