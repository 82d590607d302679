// What chunks are summarised and chosen with, on every instruction set: scores of 16 summaries, or
// of 16 keys, softmax and weighted values, beside float64; scores have the same bits whatever rows
// are scored together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/half.h"
#include "engine/base/scratch_memory.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using cpu::kScoreRows;

class ChunkScores : public testing::TestWithParam<std::tuple<Isa, DType, int>> {
 protected:
  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "not on this CPU";
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    tile_.resize(int64_t{dim_} * kTile * DTypeBytes(dtype_));
    numbers_.resize(int64_t{dim_} * kTile);
    for (int d = 0; d < dim_; ++d) {
      for (int chunk = 0; chunk < kTile; ++chunk) Set(d, chunk, normal(random));
    }
    for (int i = 0; i < kScoreRows * dim_; ++i) queries_.push_back(normal(random));
  }
  // As kv_types.h lays out 16 keys.
  void Set(int d, int chunk, float value) {
    if (dtype_ == DType::kF32) {
      std::memcpy(&tile_[(d * kTile + chunk) * 4], &value, 4);
    } else {
      const uint16_t bits = FloatToBf16(value);
      std::memcpy(&tile_[((d / 2 * kTile + chunk) * 2 + d % 2) * 2], &bits, 2);
      value = Bf16ToFloat(bits);
    }
    numbers_[d * kTile + chunk] = value;
  }
  double Expected(int row, int chunk) const {
    double score = 0;
    for (int d = 0; d < dim_; ++d) {
      score += double{queries_[row * dim_ + d]} * numbers_[d * kTile + chunk];
    }
    return score;
  }
  // The matrix unit has queries of 16 bits.
  double Tolerance() const {
    return (isa_ == Isa::kAmx && dtype_ == DType::kBf16 ? 8e-6 : 2e-6) * dim_;
  }
  cpu::ScoreChunksArgs Score(int first, int end, float threshold) const {
    cpu::ScoreChunksArgs args;
    args.dtype = dtype_;
    args.tile = args.next = tile_.data();
    args.dim = dim_;
    args.num_rows = end - first;
    const cpu::Kernels& kernels = cpu::KernelsFor(isa_);
    ScratchMemory packed;
    auto* const q = packed.Get<std::byte>(kernels.chunk_query_bytes(dtype_, args.num_rows, dim_));
    kernels.pack_chunk_queries(dtype_, &queries_[first * dim_], args.num_rows, dim_, q);
    args.q = q;
    args.thresholds.fill(threshold);
    kernels.begin_scores();
    kernels.score_chunks(&args);
    kernels.end_scores();
    return args;
  }

  const Isa isa_ = std::get<0>(GetParam());
  const DType dtype_ = std::get<1>(GetParam());
  const int dim_ = std::get<2>(GetParam());
  std::vector<std::byte> tile_;
  std::vector<float> numbers_;  // [dim][16], as they are stored
  std::vector<float> queries_;  // [kScoreRows][dim]
};

TEST_P(ChunkScores, AreProductsOfTheStoredNumbersInFp32) {
  const cpu::ScoreChunksArgs scored = Score(0, kScoreRows, 1.0f);
  for (int row = 0; row < kScoreRows; ++row) {
    for (int chunk = 0; chunk < kTile; ++chunk) {
      const float score = scored.scores[row * kTile + chunk];
      ASSERT_NEAR(score, Expected(row, chunk), Tolerance()) << row << " " << chunk;
      ASSERT_EQ(scored.above[row] >> chunk & 1, score > 1.0f ? 1u : 0u);
    }
  }
}

TEST_P(ChunkScores, DoNotDependOnTheRowsBesideThem) {
  const cpu::ScoreChunksArgs all = Score(0, kScoreRows, 0);
  for (int first = 0; first < kScoreRows; ++first) {
    for (int end = first + 1; end <= kScoreRows; ++end) {
      const cpu::ScoreChunksArgs some = Score(first, end, 0);
      ASSERT_EQ(std::memcmp(some.scores.data(), &all.scores[first * kTile],
                            (end - first) * kTile * sizeof(float)),
                0)
          << first << " " << end;
    }
  }
}

TEST_P(ChunkScores, OfPagesLikewise) {
  // A page of three times the tile, its rows further apart than its tokens.
  constexpr int kRows = 39;
  constexpr int kStride = 3 * kTile + 5;
  std::vector<std::byte> page;
  for (int n = 0; n < 3; ++n) page.insert(page.end(), tile_.begin(), tile_.end());
  std::vector<float> queries = queries_;
  queries.insert(queries.end(), queries_.begin(), queries_.begin() + (kRows - kScoreRows) * dim_);
  const auto score = [&](int first, int rows) {
    std::vector<float> out(rows * kStride, 7.0f);
    cpu::KernelsFor(isa_).score_page(dtype_, page.data(), 3 * kTile, dim_, &queries[first * dim_],
                                     rows, out.data(), kStride);
    return out;
  };
  const std::vector<float> out = score(0, kRows);
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> alone = score(row, 1);
    ASSERT_EQ(std::memcmp(&out[row * kStride], alone.data(), kStride * sizeof(float)), 0) << row;
    for (int n = 0; n < 3 * kTile; ++n) {
      ASSERT_NEAR(alone[n], Expected(row % kScoreRows, n % kTile), Tolerance()) << row << " " << n;
    }
    for (int n = 3 * kTile; n < kStride; ++n) ASSERT_EQ(alone[n], 7.0f);
  }
}

// Values lie as [token / 2][dim][2] in bf16, as [token][dim] in fp32.
TEST_P(ChunkScores, WeightedValuesAreAdded) {
  constexpr int kPageTokens = 48;
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<std::byte> values(int64_t{kPageTokens} * dim_ * DTypeBytes(dtype_));
  std::vector<float> weights;
  for (int t = 0; t < kPageTokens; ++t) weights.push_back(normal(random));
  std::vector<float> sums(dim_, 0.5f);
  std::vector<double> expected(dim_, 0.5);
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < dim_; ++d) {
      float value = normal(random);
      if (dtype_ == DType::kF32) {
        std::memcpy(&values[(t * dim_ + d) * 4], &value, 4);
      } else {
        const uint16_t bits = FloatToBf16(value);
        std::memcpy(&values[((t / 2 * dim_ + d) * 2 + t % 2) * 2], &bits, 2);
        value = Bf16ToFloat(bits);
      }
      expected[d] += double{weights[t]} * value;
    }
  }
  cpu::KernelsFor(isa_).add_weighted_values(dtype_, values.data(), kPageTokens, dim_,
                                            weights.data(), sums.data());
  for (int d = 0; d < dim_; ++d) ASSERT_NEAR(sums[d], expected[d], 2e-5) << d;
}

TEST_P(ChunkScores, SoftmaxIsThatOfFloat64WhateverTheLength) {
  constexpr float kScale = 0.125f;
  for (const int n : {1, 15, 16, 17, 128, 250}) {
    std::mt19937_64 random(n);
    std::normal_distribution<float> normal(0, 50);
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    std::vector<double> expected;
    double sum = 0;
    const double max = *std::max_element(values.begin(), values.end());
    for (const float value : values) sum += expected.emplace_back(std::exp(kScale * (value - max)));
    std::vector<float> out(n, 0.25f);
    cpu::KernelsFor(isa_).add_softmax(values.data(), kScale, n, out.data());
    for (int i = 0; i < n; ++i) {
      ASSERT_NEAR(out[i], 0.25 + expected[i] / sum, 1e-6) << n << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ChunkScores,
                         testing::Combine(testing::ValuesIn(kAllIsas),
                                          testing::Values(DType::kF32, DType::kBf16),
                                          testing::Values(16, 48, 128)),
                         [](const auto& info) {
                           return absl::StrCat(IsaName(std::get<0>(info.param)), "_",
                                               DTypeName(std::get<1>(info.param)), "_dim",
                                               std::get<2>(info.param));
                         });

}  // namespace
}  // namespace folio::test
