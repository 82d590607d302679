// Choices of chunks by 8-bit copies of their summaries: those without copies, on every instruction
// set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/chunk_selector.h"
#include "engine/backend/cpu/coarse_summary.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "tests/engine/summary_frames.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Case = std::tuple<Isa, DType, int>;
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(IsaName(std::get<0>(info.param)), "_", DTypeName(std::get<1>(info.param)),
                      "_dim", std::get<2>(info.param));
}

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
    frames_ = std::make_unique<SummaryFrames>(g_, static_cast<int>(layout_.NumFrames(kChunks)));
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
    Set(chunk, head, [&](int d) {
      return SummaryFrames::Common(d) + times * queries_[head * g_.padded_dim + d];
    });
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
      CoarseGeometry(std::get<1>(GetParam()), kHeads, kKvHeads, std::get<2>(GetParam()));
  AttentionPlan plan_;
  SummaryLayout layout_;
  std::unique_ptr<SummaryFrames> frames_;
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
