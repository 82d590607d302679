// 8-bit copies of chunk summaries: their definition, and bounds of the scores of what they are
// copies of, beside float64, on every instruction set.
#include "engine/backend/cpu/coarse_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/half.h"
#include "tests/engine/summary_frames.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Three tiles of a head that have scales in common.
struct Copy {
  static constexpr int kChunks = 3 * kTile;

  float Number(int chunk, int d) const {
    return frames->Get(1, layer, head + chunk / kTile, d, chunk % kTile);
  }
  int Integer(int chunk, int d) const {
    const auto* const tile = reinterpret_cast<const int8_t*>(coarse.tiles) +
                             chunk / kTile * frames->g.coarse_tile_bytes();
    return tile[(d / 4 * kTile + chunk % kTile) * 4 + d % 4];
  }
  void ExpectNearest(int d) const {
    const float centre = frames->Centre(layer, head, d);
    float least_scale = 0;
    for (int n = 0; n < kChunks; ++n) {
      const float x = Number(n, d);
      least_scale = std::max({least_scale, std::fabs(x - centre) / 127, std::fabs(x) / 4096});
    }
    const float scale = Fp16ToFloat(coarse.scales[d]);
    ASSERT_GE(scale, least_scale) << d;
    if (least_scale > 0) {
      ASSERT_LT(Fp16ToFloat(coarse.scales[d] - 1), least_scale) << d;
    }
    for (int n = 0; n < kChunks; ++n) {
      const double off = Number(n, d) - centre - double{scale} * Integer(n, d);
      ASSERT_LE(std::abs(Integer(n, d)), 127);
      ASSERT_LE(std::fabs(off), 0.500001 * scale) << d << " " << n;
    }
  }
  int LargestSum() const {
    int largest = 0;
    for (int n = 0; n < kChunks; ++n) {
      int sum = 0;
      for (int d = 0; d < frames->g.padded_dim; ++d) sum += std::abs(Integer(n, d));
      largest = std::max(largest, sum);
    }
    return largest;
  }

  SummaryFrames* frames;
  int layer;
  int head;
  CoarseTiles coarse{frames->g, frames->Frame(1), layer, head};
};

TEST(CoarseSummary, IsTheNearestIntegersToWhatTheFirstTileHasNotInCommon) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    SummaryFrames frames(CoarseGeometry(dtype, 6, 2, 48), 2);
    frames.Fill(1);
    const SummaryLayout layout{.vectors = 1, .tiles_per_frame = 3};
    MakeCoarseFrame(frames.g, layout, frames.Frame(0), frames.Frame(1));
    for (int layer = 0; layer < frames.g.num_layers; ++layer) {
      for (int head = 0; head < frames.g.num_heads; head += 3) {
        const Copy copy{&frames, layer, head};
        for (int d = 0; d < frames.g.padded_dim; ++d) copy.ExpectNearest(d);
        EXPECT_EQ(*copy.coarse.magnitude, copy.LargestSum());
      }
    }
  }
}

TEST(CoarseSummary, IsWorthReadingOfCompleteFramesWithFewPicks) {
  const SummaryLayout group{.vectors = 1, .tiles_per_frame = 3};
  KvGeometry g = CoarseGeometry(DType::kBf16, 6, 2, 48);
  EXPECT_EQ(NumCoarseTiles(g, group, 48 * kTile + 47, 3), 48);
  EXPECT_EQ(NumCoarseTiles(g, group, 48 * kTile - 1, 3), 0);
  EXPECT_EQ(NumCoarseTiles(g, group, 48 * kTile, 4), 0);
  EXPECT_EQ(NumCoarseTiles(g, {}, 49 * kTile + 15, 3), 49);
  g.coarse_summaries = false;
  EXPECT_EQ(NumCoarseTiles(g, group, 48 * kTile, 3), 0);
}

using Case = std::tuple<Isa, DType, int>;
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(IsaName(std::get<0>(info.param)), "_", DTypeName(std::get<1>(info.param)),
                      "_dim", std::get<2>(info.param));
}

class CoarseScores : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kHeads = 11;  // of one KV head

  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "not on this CPU";
    frames_.Fill(2);
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kHeads * g_.padded_dim; ++i) queries_.push_back(normal(random));
  }
  struct Bounds {
    std::vector<float> least, most;  // [rows][tiles]
  };
  // Of rows [first, first + rows): against all tiles of the frame, or each its own.
  Bounds Score(bool own_tiles, int first, int rows) {
    const int tiles = own_tiles ? 1 : kHeads;
    MakeCoarseFrame(g_, {.vectors = 1, .tiles_per_frame = tiles}, frames_.Frame(0),
                    frames_.Frame(1));
    const CoarseTiles coarse(g_, frames_.Frame(1), 1, own_tiles ? first : 0);
    Bounds bounds{std::vector<float>(rows * tiles), std::vector<float>(rows * tiles)};
    cpu::CoarseScoresArgs args;
    args.own_tiles = own_tiles;
    args.tiles = args.next = coarse.tiles;
    args.scales = args.next_scales = coarse.scales;
    args.magnitudes = args.next_magnitudes = coarse.magnitude;
    args.num_tiles = tiles;
    args.dim = g_.padded_dim;
    args.num_rows = rows;
    args.q = &queries_[first * g_.padded_dim];
    args.row_floats = tiles;
    args.least = bounds.least.data();
    args.most = bounds.most.data();
    cpu::KernelsFor(isa_).score_coarsely(args);
    return bounds;
  }
  // Of the best chunk of a tile, beside what all tiles have in common.
  double BestScore(int row, int place, bool own_tiles) {
    double best = -kInfinity;
    for (int lane = 0; lane < kTile; ++lane) {
      double score = 0;
      for (int d = 0; d < g_.padded_dim; ++d) {
        const double x = frames_.Get(1, 1, place, d, lane);
        score +=
            queries_[row * g_.padded_dim + d] * (x - frames_.Centre(1, own_tiles ? place : 0, d));
      }
      best = std::max(best, score);
    }
    return best;
  }
  // What may separate a bound from the score: half of every integer's unit, of the query and of
  // the summary.
  double Margin(int row, int place, bool own_tiles) {
    const CoarseTiles coarse(g_, frames_.Frame(1), 1, own_tiles ? place : 0);
    double sum = 0, most = 0;
    for (int d = 0; d < g_.padded_dim; ++d) {
      const double scaled =
          std::fabs(double{queries_[row * g_.padded_dim + d]} * Fp16ToFloat(coarse.scales[d]));
      sum += scaled;
      most = std::max(most, scaled);
    }
    return (sum + most / 127 * *coarse.magnitude) / 2;
  }

  const Isa isa_ = std::get<0>(GetParam());
  const KvGeometry g_ = CoarseGeometry(std::get<1>(GetParam()), kHeads, 1, std::get<2>(GetParam()));
  SummaryFrames frames_{g_, 2};
  std::vector<float> queries_;  // [kHeads][dim]
};

TEST_P(CoarseScores, BoundTheBestOfATileClosely) {
  for (const bool own_tiles : {false, true}) {
    const Bounds bounds = Score(own_tiles, 0, kHeads);
    for (int row = 0; row < kHeads; ++row) {
      for (int tile = 0; tile < (own_tiles ? 1 : kHeads); ++tile) {
        const int place = own_tiles ? row : tile;
        const size_t at = own_tiles ? row : row * kHeads + tile;
        const double best = BestScore(row, place, own_tiles);
        ASSERT_LE(bounds.least[at], best) << own_tiles << " " << row << " " << tile;
        ASSERT_GE(bounds.most[at], best) << own_tiles << " " << row << " " << tile;
        const double width = double{bounds.most[at]} - bounds.least[at];
        ASSERT_NEAR(width, 2.28 * Margin(row, place, own_tiles), 0.01 * width);
      }
    }
  }
}

TEST_P(CoarseScores, DoNotDependOnTheRowsBesideThem) {
  for (const bool own_tiles : {false, true}) {
    const int tiles = own_tiles ? 1 : kHeads;
    const Bounds all = Score(own_tiles, 0, kHeads);
    for (int first = 0; first < kHeads; ++first) {
      for (int rows = 1; first + rows <= kHeads; ++rows) {
        const Bounds some = Score(own_tiles, first, rows);
        const size_t bytes = rows * tiles * sizeof(float);
        ASSERT_EQ(std::memcmp(some.least.data(), &all.least[first * tiles], bytes), 0) << first;
        ASSERT_EQ(std::memcmp(some.most.data(), &all.most[first * tiles], bytes), 0) << first;
      }
    }
  }
}

TEST_P(CoarseScores, KnowNothingOfNumbersThatAreNotFinite) {
  frames_.Set(1, 1, 4, 5, 7, std::get<1>(GetParam()) == DType::kF32 ? 1e38f : kInfinity);
  const Bounds own = Score(true, 0, kHeads);
  for (int row = 0; row < kHeads; ++row) {
    ASSERT_EQ(own.most[row] == kInfinity, row == 4) << row;
    ASSERT_EQ(own.least[row] == -kInfinity, row == 4) << row;
  }
  const Bounds common = Score(false, 0, kHeads);
  for (const float most : common.most) ASSERT_EQ(most, kInfinity);
  for (const float least : common.least) ASSERT_EQ(least, -kInfinity);
}

TEST_P(CoarseScores, AreCountedAboveAThreshold) {
  std::vector<float> values(48, -kInfinity);
  for (int i = 0; i < 40; ++i) values[i] = static_cast<float>((7 * i) % 40);
  const auto count = cpu::KernelsFor(isa_).count_above;
  EXPECT_EQ(count(values.data(), 48, -1), 40);
  EXPECT_EQ(count(values.data(), 48, 0), 39);
  EXPECT_EQ(count(values.data(), 48, 30.5f), 9);
  EXPECT_EQ(count(values.data(), 48, 39), 0);
  EXPECT_EQ(count(values.data(), 48, -kInfinity), 40);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CoarseScores,
                         testing::Combine(testing::ValuesIn(kAllIsas),
                                          testing::Values(DType::kF32, DType::kBf16),
                                          testing::Values(16, 48, 80, 256)),
                         NameOf);

}  // namespace
}  // namespace folio::test
