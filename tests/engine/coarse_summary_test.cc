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

// What the first frame says of the tiles of a group of three heads, by kv_types.h and the
// definition in coarse_summary.h.
struct Channels {
  Channels(SummaryFrames* frames, int layer, int head) {
    double sum_of_sizes = 0;
    for (int d = 0; d < frames->g.padded_dim; ++d) {
      double squares = 0;
      centres.push_back(frames->Centre(layer, head, d));
      for (int lane = 0; lane < kTile; ++lane) {
        squares += std::pow(frames->Get(0, layer, head, d, lane) - centres[d], 2);
      }
      units.push_back(std::max(std::sqrt(squares / kTile), std::fabs(centres[d]) / 128));
      sum_of_sizes += units[d];
    }
    for (double& unit : units) {
      unit = std::max({unit, sum_of_sizes / frames->g.padded_dim / 2, 1e-6});
    }
  }
  std::vector<double> centres, units;
};

// A tile of the second frame and its copy.
struct Copy {
  double Off(int chunk, int d) const {
    return frames->Get(1, layer, head, d, chunk) - channels.centres[d];
  }
  int Integer(int chunk, int d) const {
    return reinterpret_cast<const int8_t*>(coarse.tiles)[(d / 4 * kTile + chunk) * 4 + d % 4];
  }
  double LeastScale() const {
    double least = 0;
    for (int d = 0; d < frames->g.padded_dim; ++d) {
      for (int n = 0; n < kTile; ++n) {
        const double x = frames->Get(1, layer, head, d, n);
        least = std::max({least, std::fabs(Off(n, d)) / channels.units[d] / 127,
                          std::fabs(x) / channels.units[d] / 4096});
      }
    }
    return least;
  }

  SummaryFrames* frames;
  int layer;
  int head;
  Channels channels{frames, layer, head - head % 3};
  CoarseTiles coarse{frames->g, frames->Frame(1), layer, head};
};

TEST(CoarseSummary, IsTheNearestIntegersToWhatTheFirstTileHasNotInCommon) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    SummaryFrames frames(CoarseGeometry(dtype, 6, 2, 48), 2);
    frames.Fill(1);
    const SummaryLayout layout{.vectors = 1, .tiles_per_frame = 3};
    MakeCoarseFrame(frames.g, layout, frames.Frame(0), frames.Frame(0));
    MakeCoarseFrame(frames.g, layout, frames.Frame(0), frames.Frame(1));
    for (int layer = 0; layer < frames.g.num_layers; ++layer) {
      for (int head = 0; head < frames.g.num_heads; ++head) {
        const Copy copy{&frames, layer, head};
        const CoarseChannels made(frames.g, frames.Frame(0), layer, head - head % 3);
        const double scale = *copy.coarse.scales;
        EXPECT_NEAR(scale, copy.LeastScale(), 1e-5 * scale);
        for (int d = 0; d < frames.g.padded_dim; ++d) {
          ASSERT_EQ(made.centres[d], copy.channels.centres[d]);
          ASSERT_NEAR(made.units[d], copy.channels.units[d], 1e-5 * made.units[d]);
          const double unit = scale * made.units[d];
          for (int n = 0; n < kTile; ++n) {
            ASSERT_LE(std::fabs(copy.Off(n, d) - unit * copy.Integer(n, d)), 0.50002 * unit)
                << d << " " << n;
          }
        }
      }
    }
  }
}

TEST(CoarseQuery, IsTheNearestIntegersToItsNumbersInUnitsOfTheChannels) {
  SummaryFrames frames(CoarseGeometry(DType::kF32, 1, 1, 48), 1);
  frames.Fill(6);
  MakeCoarseFrame(frames.g, {}, frames.Frame(0), frames.Frame(0));
  const CoarseChannels channels(frames.g, frames.Frame(0), 0, 0);
  std::vector<float> q(48);
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(random);
  const cpu::CoarseQuery query = MakeCoarseQuery(frames.g, q.data(), channels);
  int sum = 0, most = 0;
  for (int d = 0; d < 48; ++d) {
    const int integer = 128 * query.high[d] + query.low[d];
    ASSERT_NEAR(double{q[d]} * channels.units[d], double{query.unit} * integer, 0.51 * query.unit);
    sum += integer;
    most = std::max(most, std::abs(integer));
  }
  EXPECT_EQ(query.sum, sum);
  EXPECT_EQ(most, 127 * 128);
  // Of nothing, and of what is no number.
  const std::vector<float> zeros(48);
  EXPECT_EQ(MakeCoarseQuery(frames.g, zeros.data(), channels).sum, 0);
  q[5] = std::nanf("");
  EXPECT_FALSE(MakeCoarseQuery(frames.g, q.data(), channels).margin < kInfinity);
  q[5] = kInfinity;
  EXPECT_FALSE(MakeCoarseQuery(frames.g, q.data(), channels).margin < kInfinity);
}

TEST(CoarseSummary, IsWorthReadingOfCompleteFramesWithFewPicks) {
  const SummaryLayout group{.vectors = 1, .tiles_per_frame = 3};
  KvGeometry g = CoarseGeometry(DType::kBf16, 6, 2, 48);
  EXPECT_EQ(NumCoarseTiles(g, group, 24 * kTile + 47, 3), 24);
  EXPECT_EQ(NumCoarseTiles(g, group, 24 * kTile - 1, 3), 0);
  EXPECT_EQ(NumCoarseTiles(g, group, 24 * kTile, 4), 0);
  EXPECT_EQ(NumCoarseTiles(g, {}, 25 * kTile + 15, 3), 25);
  // Of the first frame there are none.
  EXPECT_EQ(NumCoarseTiles(g, {.vectors = 1, .tiles_per_frame = 16}, 31 * kTile, 1), 0);
  g.coarse_summaries = false;
  EXPECT_EQ(NumCoarseTiles(g, group, 24 * kTile, 3), 0);
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
    const SummaryLayout layout{.vectors = 1, .tiles_per_frame = tiles};
    MakeCoarseFrame(g_, layout, frames_.Frame(0), frames_.Frame(0));
    MakeCoarseFrame(g_, layout, frames_.Frame(0), frames_.Frame(1));
    const CoarseTiles coarse(g_, frames_.Frame(1), 1, own_tiles ? first : 0);
    std::vector<cpu::CoarseQuery> queries;
    for (int row = first; row < first + rows; ++row) {
      queries.push_back(MakeCoarseQuery(g_, Query(row), ChannelsOf(row, own_tiles)));
    }
    Bounds bounds{std::vector<float>(rows * tiles), std::vector<float>(rows * tiles)};
    cpu::CoarseScoresArgs args;
    args.own_tiles = own_tiles;
    args.tiles = args.next = coarse.tiles;
    args.scales = args.next_scales = coarse.scales;
    args.num_tiles = tiles;
    args.dim = g_.padded_dim;
    args.num_rows = rows;
    args.queries = queries.data();
    args.row_floats = tiles;
    args.least = bounds.least.data();
    args.most = bounds.most.data();
    cpu::KernelsFor(isa_).score_coarsely(args);
    return bounds;
  }
  const float* Query(int row) const { return &queries_[row * g_.padded_dim]; }
  CoarseChannels ChannelsOf(int place, bool own_tiles) {
    return {g_, frames_.Frame(0), 1, own_tiles ? place : 0};
  }
  // Of the best chunk of a tile, beside what all tiles have in common.
  double BestScore(int row, int place, bool own_tiles) {
    double best = -kInfinity;
    for (int lane = 0; lane < kTile; ++lane) {
      double score = 0;
      for (int d = 0; d < g_.padded_dim; ++d) {
        const double x = frames_.Get(1, 1, place, d, lane);
        score += Query(row)[d] * (x - frames_.Centre(1, own_tiles ? place : 0, d));
      }
      best = std::max(best, score);
    }
    return best;
  }
  // What may separate a bound from the score: half of every integer's unit, of the query and of
  // the summary.
  double Margin(int row, int place, bool own_tiles) {
    const CoarseChannels channels = ChannelsOf(place, own_tiles);
    double sum = 0, most = 0;
    for (int d = 0; d < g_.padded_dim; ++d) {
      const double scaled = std::fabs(double{Query(row)[d]} * channels.units[d]);
      sum += scaled;
      most = std::max(most, scaled);
    }
    const CoarseTiles coarse(g_, frames_.Frame(1), 1, place);
    return *coarse.scales * (sum + most / 128 * g_.padded_dim) / 2;
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
  frames_.Set(1, 1, 4, 5, 7, kInfinity);
  for (const bool own_tiles : {true, false}) {
    const Bounds bounds = Score(own_tiles, 0, kHeads);
    for (size_t at = 0; at < bounds.most.size(); ++at) {
      const bool unknown = at % kHeads == 4;  // the row, or the tile
      ASSERT_EQ(bounds.most[at] == kInfinity, unknown) << own_tiles << " " << at;
      ASSERT_EQ(bounds.least[at] == -kInfinity, unknown) << own_tiles << " " << at;
    }
  }
  queries_[2 * g_.padded_dim + 3] = std::nanf("");
  const Bounds bounds = Score(true, 2, 1);
  EXPECT_EQ(bounds.most[0], kInfinity);
  EXPECT_EQ(bounds.least[0], -kInfinity);
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
