#include "engine/tools/bytes_per_decode.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include "engine/attention/strategy_registry.h"
#include "engine/attention/visible_keys.h"
#include "engine/types/plan_reading.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using Share = ChunkSelection::Share;

// 2 layers, 8 heads, 2 KV heads of 64 dimensions, pages of 64 tokens in bf16.
KvGeometry Geometry() { return {2, 8, 2, 64, 64, 64, DType::kBf16}; }
constexpr double kBytesPerToken = 2 * 2 * 64 * 2 * 2;  // layers, KV heads, dimensions, K and V

AttentionPlan PlanOf(const char* strategy) {
  const StrategyLimits limits{2048, 64, 0};
  auto spec = ResolveStrategySpec({strategy, {}}, limits);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return FindStrategy(strategy)->Plan(*spec, limits);
}

AttentionPlan LongHeads(ChunkSelection::Scorer scorer, Share share) {
  AttentionPlan plan = PlanOf("long_heads");
  plan.prompt_tokens = 1;
  plan.selection.scorer = scorer;
  plan.selection.share = share;
  return plan;
}

// Bytes of keys and values that a token reads if the heads of each group pick at random, the mean
// of many draws.
double DrawnBytes(const AttentionPlan& plan, int64_t position, int heads_that_choose) {
  constexpr int kDraws = 300;
  const ChunkView view = ViewChunks(plan.selection, position, false);
  std::vector<int64_t> candidates;
  for (int64_t c = view.candidates_begin; c < view.candidates_end; ++c) candidates.push_back(c);
  std::mt19937 random(7);
  int64_t tokens = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::set<int64_t> seen;
    for (int head = 0; head < heads_that_choose; ++head) {
      std::vector<int64_t> picks;
      std::sample(candidates.begin(), candidates.end(), std::back_inserter(picks),
                  plan.selection.num_free_picks, random);
      for (const VisibleKey& key : ExpandPlan(plan, position, picks)) seen.insert(key.position);
    }
    tokens += std::ssize(seen);
  }
  return kBytesPerToken * static_cast<double>(tokens) / kDraws;
}

constexpr int64_t kPosition = 60 * 128 + 17;  // 60 complete chunks

TEST(BytesPerDecode, UnderFullAttentionIsTheWholeCache) {
  EXPECT_EQ(BytesPerDecode(PlanOf("full"), Geometry(), 999), 1000 * kBytesPerToken);
}

TEST(BytesPerDecode, OfACacheOf8BitsIsIntegersAndScales) {
  KvGeometry sealed = Geometry();
  sealed.sealed_bits = 8;
  const double scales = 2 * 2 * (64 + 64) * 4;  // of a page: of its dimensions and its tokens
  for (const char* strategy : {"full", "lm_infinite"}) {
    EXPECT_EQ(BytesPerDecode(PlanOf(strategy), sealed, 1023),
              1024 * kBytesPerToken / 2 + 16 * scales)
        << strategy;
  }
}

TEST(BytesPerDecode, OfHeadsThatChooseApartIsTheMeanOverRandomChoices) {
  const AttentionPlan plan = LongHeads(ChunkSelection::Scorer::kLongHeads, Share::kNone);
  const double summaries = 60 * 2 * 8 * 64 * 2;  // chunks, layers, heads, dimensions
  const double drawn = DrawnBytes(plan, kPosition, 4);
  EXPECT_NEAR(BytesPerDecode(plan, Geometry(), kPosition), drawn + summaries, 0.01 * drawn);
}

TEST(BytesPerDecode, OfOneChoiceForAGroupReadsItsChunksOnce) {
  const AttentionPlan plan = LongHeads(ChunkSelection::Scorer::kMeanKey, Share::kGroup);
  const double summaries = 60 * 2 * 2 * 64 * 2;  // chunks, layers, KV heads, dimensions
  EXPECT_EQ(BytesPerDecode(plan, Geometry(), kPosition),
            DrawnBytes(plan, kPosition, 1) + summaries);
}

TEST(BytesPerDecode, OfQuestReadsTwoSummariesOfAChunk) {
  const AttentionPlan one = LongHeads(ChunkSelection::Scorer::kMeanKey, Share::kNone);
  const AttentionPlan two = LongHeads(ChunkSelection::Scorer::kQuest, Share::kNone);
  EXPECT_EQ(BytesPerDecode(two, Geometry(), kPosition) - BytesPerDecode(one, Geometry(), kPosition),
            60 * 2 * 2 * 64 * 2);
}

TEST(BytesPerDecode, OfAChoiceThatLaterLayersTakeOverReadsSummariesInOne) {
  const AttentionPlan each = LongHeads(ChunkSelection::Scorer::kLongHeads, Share::kNone);
  const AttentionPlan first = LongHeads(ChunkSelection::Scorer::kLongHeads, Share::kLayers);
  EXPECT_EQ(
      BytesPerDecode(each, Geometry(), kPosition) - BytesPerDecode(first, Geometry(), kPosition),
      60 * 8 * 64 * 2);
}

// Of each 16 tiles one may hold a pick.
TEST(BytesPerDecode, OfOneChoiceReads8BitCopiesAndTheTilesOfPicks) {
  AttentionPlan plan = LongHeads(ChunkSelection::Scorer::kMeanKey, Share::kGroup);
  const int64_t picks = plan.selection.num_free_picks;
  KvGeometry coarse = Geometry();
  coarse.coarse_summaries = true;
  const int64_t chunks = picks * 16 * 16 + 50;  // 50 of them in a frame that is not complete
  const int64_t position = chunks * 128 + 256;
  const double all = BytesPerDecode(plan, Geometry(), position);
  const double tile = 16 * 64;                   // of 8 bits
  const double saved = 2 * 2 * 16 * (tile - 4);  // a tile has a scale
  const double read_again = 2 * 2 * picks * 2 * tile;
  EXPECT_DOUBLE_EQ(all - BytesPerDecode(plan, coarse, position), picks * saved - read_again);
  // Fewer chunks, scores of two products, heads that choose apart: as without copies.
  EXPECT_EQ(BytesPerDecode(plan, coarse, kPosition), BytesPerDecode(plan, Geometry(), kPosition));
  plan.selection.scorer = ChunkSelection::Scorer::kQuest;
  EXPECT_EQ(BytesPerDecode(plan, coarse, position), BytesPerDecode(plan, Geometry(), position));
  plan = LongHeads(ChunkSelection::Scorer::kMeanKey, Share::kNone);
  EXPECT_EQ(BytesPerDecode(plan, coarse, position), BytesPerDecode(plan, Geometry(), position));
}

TEST(BytesPerDecode, WithoutScoresReadsNoSummaries) {
  AttentionPlan plan = LongHeads(ChunkSelection::Scorer::kLongHeads, Share::kNone);
  plan.selection.order = ChunkSelection::Order::kLast;
  EXPECT_EQ(BytesPerDecode(plan, Geometry(), kPosition), DrawnBytes(plan, kPosition, 1));
}

}  // namespace
}  // namespace folio
