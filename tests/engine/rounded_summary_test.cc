// Chunk summaries in 8 bits: what they leave out is never among the best.
#include "engine/backend/cpu/rounded_summary.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "gtest/gtest.h"
#include "tests/engine/failing_backend.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

using cpu::BoundChunksArgs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The bounds of one summary in a tile of zeros; those are at most zero.
class Bounds {
 public:
  Bounds(const cpu::Kernels& kernels, int dim, int lane, std::span<const float> summary,
         std::span<const float> query)
      : lane_(lane), tile_(static_cast<size_t>(kTile) * (dim + 12), std::byte{77}) {
    cpu::RoundSummary(std::vector<float>(dim), 0, tile_.data());
    cpu::RoundSummary(summary, lane, tile_.data());
    cpu::RoundedQuery rounded;
    rounded.Set(query, 1);
    const BoundChunksArgs::Term term{tile_.data(), tile_.data(), &rounded};
    args_.terms = {&term, 1};
    args_.dim = dim;
    args_.threshold = -kInfinity;
    kernels.bound_chunks(&args_);
  }
  float lower() const { return args_.lower[lane_]; }
  float upper() const { return args_.most; }
  bool above() const { return (args_.above >> lane_ & 1) != 0; }

 private:
  const int lane_;
  std::vector<std::byte> tile_;
  BoundChunksArgs args_;
};

class BoundChunks : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!CpuSupports(GetParam())) GTEST_SKIP() << "this CPU has no " << IsaName(GetParam());
  }
  // What the kernel of exact scores gives.
  float Score(int dim, std::span<const float> summary, std::span<const float> query) const {
    std::vector<float> tile(static_cast<size_t>(dim) * kTile);
    for (int d = 0; d < dim; ++d) tile[d * kTile] = summary[d];
    cpu::ScoreChunksArgs args;
    args.tile = args.next = tile.data();
    args.dim = dim;
    args.num_rows = 1;
    args.q = query.data();
    args.thresholds.fill(0);
    cpu::KernelsFor(GetParam()).score_chunks(&args);
    return args.scores[0];
  }
  std::vector<float> Vector(int dim, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(dim);
    for (float& value : values) value = normal(random_);
    // Some are much larger than the others, as of keys.
    values[random_() % dim] *= 30;
    return values;
  }
  std::mt19937 random_{static_cast<uint32_t>(TestSeed())};
};

TEST_P(BoundChunks, AreOnBothSidesOfTheScoreAndClose) {
  const cpu::Kernels& kernels = cpu::KernelsFor(GetParam());
  for (const int dim : {16, 48, 64, 128, 256}) {
    for (const float deviation : {1e-18f, 1e-3f, 1.0f, 1e6f}) {
      for (int n = 0; n < 200; ++n) {
        SCOPED_TRACE(testing::Message() << dim << " numbers, deviation " << deviation);
        const std::vector<float> summary = Vector(dim, deviation);
        std::vector<float> query = Vector(dim, 1);
        // At times the score is all but the largest that there can be, where rounding counts most.
        if (n % 4 == 0) query = summary;
        float score = Score(dim, summary, query);
        if (score < 0) {
          for (float& value : query) value = -value;
          score = -score;
        }
        const Bounds bounds(kernels, dim, 1 + n % 15, summary, query);
        EXPECT_LE(bounds.lower(), score);
        EXPECT_GE(bounds.upper(), score);
        EXPECT_TRUE(bounds.above());
        double lengths = 1;
        for (const auto& vector : {summary, query}) {
          double squares = 0;
          for (const float value : vector) squares += double{value} * value;
          lengths *= std::sqrt(squares);
        }
        // A rounded number is off by half of 1 / 127 of the largest at most.
        EXPECT_LE(bounds.upper() - bounds.lower(), 2.1 * std::sqrt(dim) / 127 * lengths);
      }
    }
  }
}

TEST_P(BoundChunks, OfNumbersThatAreNotFiniteAreInfinite) {
  const cpu::Kernels& kernels = cpu::KernelsFor(GetParam());
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const bool in_query : {false, true}) {
      std::vector<float> summary = Vector(64, 1);
      std::vector<float> query = Vector(64, 1);
      (in_query ? query : summary)[5] = bad;
      const Bounds bounds(kernels, 64, 3, summary, query);
      EXPECT_EQ(bounds.upper(), kInfinity);
      EXPECT_FALSE(bounds.above());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BoundChunks, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST(RoundedSummary, OfAFrameAreThoseOfItsLanes) {
  KvGeometry g{.num_layers = 2, .num_heads = 3, .num_kv_heads = 1, .head_dim = 20};
  g.padded_dim = 32;
  g.page_tokens = 16;
  const int64_t without = g.summary_frame_bytes();
  g.rounded_summaries = true;
  EXPECT_EQ(g.summary_frame_bytes() - without, 2 * 3 * 16 * (32 + 12));
  std::vector<float> frame(g.summary_frame_bytes() / sizeof(float));
  std::mt19937 random(1);
  for (float& value : frame) value = std::normal_distribution<float>()(random);
  auto* const bytes = reinterpret_cast<std::byte*>(frame.data());
  cpu::RoundSummaryFrame(g, bytes);
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 3; ++head) {
      std::vector<std::byte> tile(g.rounded_tile_bytes());
      const auto* summaries = reinterpret_cast<const float*>(bytes + g.summary_offset(layer, head));
      for (int lane = 0; lane < kTile; ++lane) {
        std::vector<float> summary(32);
        for (int d = 0; d < 32; ++d) summary[d] = summaries[d * kTile + lane];
        cpu::RoundSummary(summary, lane, tile.data());
      }
      EXPECT_TRUE(std::equal(tile.begin(), tile.end(), bytes + g.rounded_offset(layer, head)));
    }
  }
}

// Has no summaries in 8 bits.
class ExactBackend final : public FailingBackend {
 public:
  ExactBackend() : FailingBackend(NewTestBackend(), &kNever) {}
  bool rounds_summaries() const override { return false; }

 private:
  inline static const std::atomic<bool> kNever{false};
};

struct Case {
  const char* name;
  ChunkSelection::Scorer scorer;
  ChunkSelection::Share share;
  int num_free_picks;
};

class RoundedChoice : public testing::TestWithParam<Case> {};

// Prompts, answers and a few rows at a time.
TEST_P(RoundedChoice, IsThatOfExactScores) {
  if (OnTestBackend()) GTEST_SKIP() << "of the CPU backend";
  ScratchDir dir;
  WriteTinyModel({.trained_length = 256}, dir.path());
  EngineOptions options;
  options.model_dir = dir.path();
  options.page_tokens = 16;
  options.kv_bytes = int64_t{64} << 20;
  // The logits of all rows of a step are looked at.
  options.step_tokens = options.prefill_share_tokens = options.max_running_requests = 512;
  auto exact = LoadModel(options, false, std::make_unique<ExactBackend>());
  ASSERT_TRUE(exact.ok()) << exact.status();
  auto rounded = LoadModel(options, false, NewTestBackend());
  ASSERT_TRUE(rounded.ok()) << rounded.status();
  ASSERT_FALSE((*exact)->store->geometry().rounded_summaries);
  ASSERT_TRUE((*rounded)->store->geometry().rounded_summaries);

  AttentionPlan plan;
  plan.stages.emplace_back().rows_end = 64;
  plan.stages.push_back({.keys = AttentionStage::Keys::kChunks,
                         .distance = AttentionStage::Distance::kCompacted,
                         .rows_begin = 64});
  plan.selection.chunk_tokens = 16;
  plan.selection.num_free_picks = GetParam().num_free_picks;
  plan.selection.scorer = GetParam().scorer;
  plan.selection.share = GetParam().share;
  const std::vector<int32_t> tokens = RandomTokens(2300, 64, 3);
  for (const int piece : {1, 5}) {
    const std::vector<int> pieces = {512, 512, 512, 512, piece};
    EXPECT_EQ(AllLogits(exact->get(), plan, tokens, pieces),
              AllLogits(rounded->get(), plan, tokens, pieces))
        << "pieces of " << piece;
  }
}

using Scorer = ChunkSelection::Scorer;
using Share = ChunkSelection::Share;
INSTANTIATE_TEST_SUITE_P(
    , RoundedChoice,
    testing::Values(Case{"LongHeads", Scorer::kLongHeads, Share::kNone, 5},
                    Case{"OneChunk", Scorer::kLongHeads, Share::kNone, 1},
                    Case{"AllChunks", Scorer::kLongHeads, Share::kNone, 150},
                    Case{"GroupsOfHeads", Scorer::kLongHeads, Share::kGroup, 5},
                    Case{"Quest", Scorer::kQuest, Share::kNone, 5},
                    Case{"QuestInGroups", Scorer::kQuest, Share::kGroup, 5},
                    Case{"MeanKey", Scorer::kMeanKey, Share::kNone, 5},
                    Case{"Representatives", Scorer::kRepresentatives, Share::kLayers, 5}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace folio::test
