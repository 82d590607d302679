// 8-bit copies of chunk summaries: their definition, bounds of the scores of what they are copies
// of beside float64, and that a choice by them is the choice without them, on every instruction
// set.
#include "engine/backend/cpu/coarse_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/chunk_selector.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/half.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

KvGeometry Geometry(DType dtype, int num_heads, int num_kv_heads, int head_dim) {
  KvGeometry geometry = KvGeometry::Make(
      {.num_layers = 2, .num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = head_dim},
      16, dtype);
  geometry.coarse_summaries = true;
  return geometry;
}

// Summary frames as they lie in memory.
struct Frames {
  Frames(const KvGeometry& geometry, int count)
      : g(geometry), bytes(count * geometry.summary_frame_bytes()) {}

  std::byte* Frame(int frame) { return bytes.data() + frame * g.summary_frame_bytes(); }
  // Element d of the summary in a lane of a tile, as kv_types.h lays out 16 keys.
  void Set(int frame, int layer, int place, int d, int lane, float x) {
    std::byte* const tile = Frame(frame) + g.summary_offset(layer, place);
    if (g.dtype == DType::kF32) {
      std::memcpy(tile + (d * kTile + lane) * 4, &x, 4);
    } else {
      const uint16_t bits = FloatToBf16(x);
      std::memcpy(tile + ((d / 2 * kTile + lane) * 2 + d % 2) * 2, &bits, 2);
    }
  }
  float Get(int frame, int layer, int place, int d, int lane) {
    const std::byte* const tile = Frame(frame) + g.summary_offset(layer, place);
    float x;
    uint16_t bits;
    if (g.dtype == DType::kF32) {
      std::memcpy(&x, tile + (d * kTile + lane) * 4, 4);
      return x;
    }
    std::memcpy(&bits, tile + ((d / 2 * kTile + lane) * 2 + d % 2) * 2, 2);
    return Bf16ToFloat(bits);
  }
  // The mean of element d in the first tile of a head.
  float Centre(int layer, int place, int d) {
    float sum = 0;
    for (int lane = 0; lane < kTile; ++lane) sum += Get(0, layer, place, d, lane);
    return sum / kTile;
  }
  // Channels of all sizes, one of zeros, one whose numbers are nearly the same, and one in which
  // they differ by what is the last of 8 bits.
  static float Common(int d) { return d == 1 ? 30.0f : d == 3 ? 500.0f : 0.0f; }
  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int frame = 0; frame * g.summary_frame_bytes() < std::ssize(bytes); ++frame) {
      for (int layer = 0; layer < g.num_layers; ++layer) {
        for (int place = 0; place < g.num_heads; ++place) {
          for (int lane = 0; lane < kTile; ++lane) {
            for (int d = 0; d < g.head_dim; ++d) {
              const float x = normal(random);
              const float size = d == 0 ? 0.0f : d == 2 ? 1e-6f : d == 3 ? 0.25f : 1.0f;
              Set(frame, layer, place, d, lane, Common(d) + size * x);
            }
          }
        }
      }
    }
  }

  const KvGeometry g;
  std::vector<std::byte> bytes;
};

TEST(CoarseSummary, IsTheNearestIntegersToWhatTheFirstTileHasNotInCommon) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const KvGeometry g = Geometry(dtype, 6, 2, 48);
    const SummaryLayout layout{.vectors = 1, .tiles_per_frame = 3};
    Frames frames(g, 2);
    frames.Fill(1);
    MakeCoarseFrame(g, layout, frames.Frame(0), frames.Frame(1));
    for (int layer = 0; layer < g.num_layers; ++layer) {
      for (int head = 0; head < g.num_heads; head += 3) {
        const CoarseTiles coarse(g, frames.Frame(1), layer, head);
        int largest_sum = 0;
        std::vector<int> sums(3 * kTile);
        for (int d = 0; d < g.padded_dim; ++d) {
          const float centre = frames.Centre(layer, head, d);
          float least = 0;
          for (int n = 0; n < 3 * kTile; ++n) {
            const float x = frames.Get(1, layer, head + n / kTile, d, n % kTile);
            least = std::max({least, std::fabs(x - centre) / 127, std::fabs(x) / 4096});
          }
          const float scale = Fp16ToFloat(coarse.scales[d]);
          ASSERT_GE(scale, least) << d;
          if (least > 0) {
            ASSERT_LT(Fp16ToFloat(coarse.scales[d] - 1), least) << d;
          }
          for (int n = 0; n < 3 * kTile; ++n) {
            const double x = frames.Get(1, layer, head + n / kTile, d, n % kTile) - centre;
            const auto* const tile =
                reinterpret_cast<const int8_t*>(coarse.tiles) + n / kTile * g.coarse_tile_bytes();
            const int integer = tile[(d / 4 * kTile + n % kTile) * 4 + d % 4];
            ASSERT_LE(std::abs(integer), 127);
            ASSERT_LE(std::fabs(x - double{scale} * integer), 0.500001 * scale) << d << " " << n;
            sums[n] += std::abs(integer);
          }
        }
        for (const int sum : sums) largest_sum = std::max(largest_sum, sum);
        EXPECT_EQ(*coarse.magnitude, largest_sum);
      }
    }
  }
}

TEST(CoarseSummary, IsWorthReadingOfCompleteFramesWithFewPicks) {
  const SummaryLayout group{.vectors = 1, .tiles_per_frame = 3};
  KvGeometry g = Geometry(DType::kBf16, 6, 2, 48);
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
  const KvGeometry g_ = Geometry(std::get<1>(GetParam()), kHeads, 1, std::get<2>(GetParam()));
  Frames frames_{g_, 2};
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

// A stream with many chunks, of which its heads choose two.
class CoarseChoice : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kHeads = 6, kKvHeads = 2, kPicks = 2;
  static constexpr int64_t kChunks = 16 * 3 * kPicks * kTile + 5;  // and some of a frame
  static constexpr int kLayer = 1;

  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "not on this CPU";
    std::mt19937_64 random(4);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kHeads * g_.padded_dim; ++i) queries_.push_back(normal(random));
  }
  void Use(ChunkSelection::Scorer scorer, ChunkSelection::Share share) {
    plan_.selection.chunk_tokens = 16;
    plan_.selection.num_free_picks = kPicks;
    plan_.selection.scorer = scorer;
    plan_.selection.share = share;
    layout_ = SummaryLayoutOf(plan_.selection, g_.group_size());
    frames_ = std::make_unique<Frames>(g_, static_cast<int>(layout_.NumFrames(kChunks)));
    frames_->Fill(5);
    ids_.clear();
    for (int n = 0; n < layout_.NumFrames(kChunks); ++n) ids_.push_back(n);
  }
  void Set(int64_t chunk, int head, const std::function<float(int)>& element) {
    const SummaryLayout::Place place = layout_.PlaceOf(chunk / kTile, head, 0);
    for (int d = 0; d < g_.head_dim; ++d) {
      frames_->Set(static_cast<int>(place.frame), kLayer, place.head, d,
                   static_cast<int>(chunk % kTile), element(d));
    }
  }
  // Like others, and along the query of a head: it scores `times` the square of its length more.
  void SetAlong(int64_t chunk, int head, float times) {
    Set(chunk, head,
        [&](int d) { return Frames::Common(d) + times * queries_[head * g_.padded_dim + d]; });
  }
  void MakeCopies() {
    for (const FrameId frame : ids_) {
      MakeCoarseFrame(g_, layout_, frames_->Frame(0), frames_->Frame(frame));
    }
  }
  struct Choice {
    std::vector<int64_t> chunks;  // best first
    std::vector<float> scores;
    bool operator==(const Choice&) const = default;
  };
  // Of the heads of the first KV head, or of all where the layer chooses.
  std::vector<Choice> Choose(bool coarse) {
    AttentionSetup setup;
    setup.geometry = g_;
    setup.summaries = {frames_->bytes.data(), g_.summary_frame_bytes()};
    SequenceSlice slice;
    slice.plan = &plan_;
    slice.summaries = ids_;
    CpuAttentionContext context;
    context.setup = &setup;
    context.kernels = &cpu::KernelsFor(isa_);
    context.slice = &slice;
    const bool layer = plan_.selection.share == ChunkSelection::Share::kLayer;
    ChunkSelector::Rows rows;
    rows.layer = kLayer;
    rows.num_heads = layer ? kHeads : g_.group_size();
    rows.together = layer || plan_.selection.share == ChunkSelection::Share::kGroup;
    rows.queries = queries_.data();
    rows.head_stride = g_.padded_dim;
    // A row beside it makes the selector score all summaries at once.
    const std::vector<int64_t> ends(coarse ? 1 : 2, kChunks);
    std::vector<float> twice;
    if (!coarse) {
      for (int head = 0; head < rows.num_heads; ++head) {
        for (int row = 0; row < 2; ++row) {
          const auto from = queries_.begin() + head * g_.padded_dim;
          twice.insert(twice.end(), from, from + g_.padded_dim);
        }
      }
      rows.queries = twice.data();
      rows.head_stride = 2 * g_.padded_dim;
    }
    rows.ends = ends;
    ChunkSelector selector;
    selector.Run(context, rows);
    std::vector<Choice> choices;
    for (int head = 0; head < (rows.together ? 1 : rows.num_heads); ++head) {
      Choice& choice = choices.emplace_back();
      for (const ChunkSelector::Pick& pick : selector.Ranked(head, 0)) {
        choice.chunks.push_back(pick.chunk);
        choice.scores.push_back(pick.score);
      }
    }
    return choices;
  }

  const Isa isa_ = std::get<0>(GetParam());
  const KvGeometry g_ =
      Geometry(std::get<1>(GetParam()), kHeads, kKvHeads, std::get<2>(GetParam()));
  AttentionPlan plan_;
  SummaryLayout layout_;
  std::unique_ptr<Frames> frames_;
  std::vector<FrameId> ids_;
  std::vector<float> queries_;  // [kHeads][dim]
};

TEST_P(CoarseChoice, IsThatOfTheSummariesWithItsScores) {
  using Scorer = ChunkSelection::Scorer;
  using Share = ChunkSelection::Share;
  for (const Scorer scorer : {Scorer::kLongHeads, Scorer::kMeanKey, Scorer::kQuest}) {
    for (const Share share : {Share::kNone, Share::kGroup, Share::kLayer}) {
      Use(scorer, share);
      MakeCopies();
      const std::vector<Choice> all = Choose(false);
      ASSERT_EQ(all[0].chunks.size(), size_t{kPicks});
      EXPECT_EQ(Choose(true), all) << static_cast<int>(scorer) << " " << static_cast<int>(share);
    }
  }
}

// Of equal scores the smaller index, chunk 0 never, and NaN never.
TEST_P(CoarseChoice, OfTiesAndNumbersThatAreNoneIsThatOfTheSummaries) {
  for (const auto scorer : {ChunkSelection::Scorer::kLongHeads, ChunkSelection::Scorer::kMeanKey}) {
    Use(scorer, ChunkSelection::Share::kNone);
    SetAlong(0, 0, 9);
    for (const int64_t chunk : {40, 300, 301, 999}) SetAlong(chunk, 0, 3);
    Set(700, 0, [](int) { return std::nanf(""); });
    MakeCopies();
    const std::vector<Choice> all = Choose(false);
    EXPECT_EQ(all[0].chunks, (std::vector<int64_t>{40, 300}));
    EXPECT_EQ(Choose(true), all);
    Use(scorer, ChunkSelection::Share::kNone);
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) Set(chunk, 0, [](int) { return 0.0f; });
    MakeCopies();
    EXPECT_EQ(Choose(true)[0].chunks, (std::vector<int64_t>{1, 2}));
  }
}

// Also of the last tiles, whose frame is not complete and has no copies.
TEST_P(CoarseChoice, ReadsOnlyTilesThatMayHoldAPick) {
  Use(ChunkSelection::Scorer::kMeanKey, ChunkSelection::Share::kGroup);
  for (int head = 0; head < g_.group_size(); ++head) {
    std::copy_n(queries_.begin(), g_.padded_dim, queries_.begin() + head * g_.padded_dim);
  }
  SetAlong(500, 0, 20);
  SetAlong(kChunks - 1, 0, 10);
  MakeCopies();
  EXPECT_EQ(Choose(true)[0].chunks, (std::vector<int64_t>{500, kChunks - 1}));
  // Not in the copies: of chunk 1000 nothing says that it is worth a look.
  SetAlong(1000, 0, 30);
  EXPECT_EQ(Choose(false)[0].chunks, (std::vector<int64_t>{1000, 500}));
  EXPECT_EQ(Choose(true)[0].chunks, (std::vector<int64_t>{500, kChunks - 1}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CoarseChoice,
                         testing::Combine(testing::ValuesIn(kAllIsas),
                                          testing::Values(DType::kF32, DType::kBf16),
                                          testing::Values(32, 64)),
                         NameOf);

}  // namespace
}  // namespace folio::test
