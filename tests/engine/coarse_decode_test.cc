// Streams with so many chunks that decoding rows choose by 8-bit copies of the summaries.
#include <cstring>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/backend/cpu/coarse_summary.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Scorer = ChunkSelection::Scorer;
using Share = ChunkSelection::Share;

class CoarseDecode : public testing::TestWithParam<std::tuple<Scorer, Share>> {
 protected:
  static constexpr int kText = 33 * kTile * kTile + 50;  // chunks have kTile tokens

  void SetUp() override {
    WriteTinyModel({}, dir_.path() + "/model");
    model_ = LoadTestModel(dir_.path() + "/model");
    if (!geometry().coarse_summaries) GTEST_SKIP() << "this backend has no copies";
    const auto spec =
        ResolveAttention({{"long_heads", {}}, {}}, {}, model_->attention, {kText, false});
    ASSERT_TRUE(spec.ok()) << spec.status();
    plan_ = PlanFor(*spec, model_->attention, kUnbounded);
    plan_.selection.num_free_picks = 1;
    std::tie(plan_.selection.scorer, plan_.selection.share) = GetParam();
    ASSERT_EQ(plan_.selection.chunk_tokens, kTile);
  }
  const KvGeometry& geometry() const { return model_->store->geometry(); }
  // Of a frame, with something else in the place of copies.
  std::vector<std::byte> WithoutCopies(const std::byte* frame) const {
    std::vector<std::byte> bytes(frame, frame + geometry().summary_frame_bytes());
    for (int layer = 0; layer < geometry().num_layers; ++layer) {
      std::memset(&bytes[geometry().coarse_offset(layer)], 0x55, geometry().coarse_layer_bytes());
    }
    return bytes;
  }

  ScratchDir dir_;
  std::unique_ptr<LoadedModel> model_;
  AttentionPlan plan_;
};

// Rows of a prompt score all summaries.
TEST_P(CoarseDecode, GivesTheLogitsOfAPrompt) {
  const auto tokens = RandomTokens(kText, 64, 3);
  std::vector<int> pieces(kText / 512, 512);
  const auto prompt = AllLogits(model_.get(), plan_, tokens, pieces);
  pieces.back() = kText % 512;
  pieces.insert(pieces.end(), 512, 1);
  EXPECT_EQ(AllLogits(model_.get(), plan_, tokens, pieces), prompt);
}

TEST_P(CoarseDecode, HasCopiesOfTheSummariesOfCompleteFrames) {
  const auto tokens = RandomTokens(kText, 64, 4);
  Stream stream(model_.get(), plan_);
  while (stream.num_tokens() < kText) {
    const int count = std::min<int>(100, kText - static_cast<int>(stream.num_tokens()));
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back(stream.Next(0, count));
    model_->transformer->Forward(
        batch, std::span<const int32_t>(tokens).subspan(stream.num_tokens(), count), {});
    stream.Done(count);
  }
  const SummaryLayout layout = SummaryLayoutOf(plan_.selection, geometry().group_size());
  const FrameMemory frames = model_->store->summary_memory();
  const SequenceSlice slice = stream.Next(0, 1);
  const int64_t num_complete = kText / kTile / layout.ChunksPerFrame();
  ASSERT_GE(num_complete, 16);
  std::vector<std::byte> first = WithoutCopies(frames.Frame(slice.summaries[0]));
  MakeCoarseFrame(geometry(), layout, first.data(), first.data());
  for (int64_t n = 0; n < num_complete; ++n) {
    std::byte* const frame = frames.Frame(slice.summaries[n]);
    std::vector<std::byte> again = WithoutCopies(frame);
    if (n > 0) MakeCoarseFrame(geometry(), layout, first.data(), again.data());
    for (int layer = 0; layer < geometry().num_layers; ++layer) {
      for (int head = 0; head < geometry().num_heads; ++head) {
        if (n == 0) {
          if (head % layout.tiles_per_frame != 0) continue;
          const CoarseChannels made(geometry(), frame, layer, head);
          const CoarseChannels expected(geometry(), first.data(), layer, head);
          const size_t bytes = geometry().padded_dim * sizeof(float);
          ASSERT_EQ(std::memcmp(made.centres, expected.centres, bytes), 0) << layer << " " << head;
          ASSERT_EQ(std::memcmp(made.units, expected.units, bytes), 0) << layer << " " << head;
          continue;
        }
        const CoarseTiles made(geometry(), frame, layer, head);
        const CoarseTiles expected(geometry(), again.data(), layer, head);
        ASSERT_EQ(std::memcmp(made.tiles, expected.tiles, geometry().coarse_tile_bytes()), 0)
            << n << " " << layer << " " << head;
        ASSERT_EQ(*made.scales, *expected.scales);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scorers, CoarseDecode,
                         testing::Values(std::tuple(Scorer::kLongHeads, Share::kNone),
                                         std::tuple(Scorer::kMeanKey, Share::kNone),
                                         std::tuple(Scorer::kMeanKey, Share::kGroup),
                                         std::tuple(Scorer::kMeanKey, Share::kLayers)));

}  // namespace
}  // namespace folio::test
