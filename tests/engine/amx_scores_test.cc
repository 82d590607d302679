// Scores of chunk summaries on the matrix unit, its instructions emulated, beside float64.
#define FOLIO_KERNEL_NAMESPACE emulated_amx_scores
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "engine/backend/cpu/kernels/amx_scores-inl.h"
#include "engine/base/scratch_memory.h"
#include "tests/engine/emulated_tiles.h"

namespace folio::cpu::emulated_amx_scores {
namespace {

using test::EmulatedTiles;

class AmxScores : public testing::TestWithParam<int> {
 protected:
  AmxScores() : queries_(kScoreRows * dim_), numbers_(dim_ * kTileTokens), tile_(numbers_.size()) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (float& q : queries_) q = normal(random);
    for (int d = 0; d < dim_; ++d) {
      for (int chunk = 0; chunk < kTileTokens; ++chunk) {
        const uint16_t bits = FloatToBf16(normal(random));
        tile_[(d / 2 * kTileTokens + chunk) * 2 + d % 2] = bits;
        numbers_[d * kTileTokens + chunk] = Bf16ToFloat(bits);
      }
    }
    // What lies behind a tile is of another layer and not even a number.
    tile_.resize(2 * tile_.size() + 1024, 0x7fc0);
  }
  ScoreChunksArgs Score(int first, int rows) const {
    ScoreChunksArgs args;
    args.dtype = DType::kBf16;
    args.tile = args.next = reinterpret_cast<const std::byte*>(tile_.data());
    args.dim = dim_;
    args.num_rows = rows;
    ScratchMemory packed;
    auto* const q = packed.Get<std::byte>(TileQueryBytes(DType::kBf16, rows, dim_));
    PackTileQueries(DType::kBf16, &queries_[first * dim_], rows, dim_, q);
    args.q = q;
    args.thresholds.fill(0.5f);
    BeginScores<EmulatedTiles>();
    ScoreChunkTiles<EmulatedTiles>(&args);
    EmulatedTiles::Release();
    return args;
  }

  const int dim_ = GetParam();
  std::vector<float> queries_;
  std::vector<float> numbers_;
  std::vector<uint16_t> tile_;
};

TEST_P(AmxScores, AreProductsOfQueriesOfSixteenBits) {
  const ScoreChunksArgs scored = Score(0, kScoreRows);
  for (int row = 0; row < kScoreRows; ++row) {
    for (int chunk = 0; chunk < kTileTokens; ++chunk) {
      double sum = 0, magnitudes = 0;
      for (int d = 0; d < dim_; ++d) {
        const double term = double{queries_[row * dim_ + d]} * numbers_[d * kTileTokens + chunk];
        sum += term;
        magnitudes += std::fabs(term);
      }
      const float score = scored.scores[row * kTileTokens + chunk];
      ASSERT_NEAR(score, sum, magnitudes / (1 << 16)) << "row " << row << ", chunk " << chunk;
      ASSERT_EQ(scored.above[row] >> chunk & 1, score > 0.5f ? 1u : 0u);
    }
  }
}

TEST_P(AmxScores, DoNotDependOnTheRowsBesideThem) {
  const ScoreChunksArgs all = Score(0, kScoreRows);
  for (const int rows : {1, 2, 15, 16, 17, 31}) {
    for (int first = 0; first + rows <= kScoreRows; first += 5) {
      const ScoreChunksArgs some = Score(first, rows);
      ASSERT_EQ(std::memcmp(some.scores.data(), &all.scores[first * kTileTokens],
                            rows * kTileTokens * sizeof(float)),
                0)
          << rows << " rows from " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, AmxScores, testing::Values(16, 48, 64, 80, 128, 256));

}  // namespace
}  // namespace folio::cpu::emulated_amx_scores
