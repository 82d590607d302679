// What a scored stream and evidence say, against the model's own logits and choices.
#include <cmath>

#include "engine/kv/sequence_slice.h"
#include "engine/runtime/evidence.h"
#include "engine/runtime/model_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kVocab = 64;

AttentionPlan Window(int64_t tokens) {
  AttentionPlan plan;
  plan.stages.push_back({.band_end = tokens});
  plan.retention.window_tokens = tokens;
  return plan;
}

class WithTinyModel : public testing::Test {
 protected:
  WithTinyModel() {
    WriteTinyModel({}, dir_.path() + "/model");
    model_ = LoadTestModel(dir_.path() + "/model");
  }
  ScratchDir dir_;
  std::unique_ptr<LoadedModel> model_;
};

using Scoring = WithTinyModel;

TEST_F(Scoring, IsTheLogSoftmaxOfTheLogits) {
  const auto tokens = RandomTokens(150, kVocab, 3);
  const AttentionPlan plan = Window(40);
  const auto logits = AllLogits(model_.get(), plan, tokens, {512});
  Sequence sequence;
  sequence.plan = plan;
  sequence.tokens = std::make_shared<std::vector<int32_t>>(tokens);
  sequence.num_known = static_cast<int64_t>(tokens.size()) - 1;
  sequence.num_prompt = kUnbounded;
  sequence.scores = true;
  ModelRunner runner(model_->transformer.get());
  std::vector<float> scores;
  while (sequence.num_pending() > 0) {
    const int count = static_cast<int>(std::min<int64_t>(33, sequence.num_pending()));
    ASSERT_TRUE(model_->store->Extend(plan, sequence.num_in_kv, count, &sequence.kv).ok());
    const ModelRunner::Results results = runner.Run({{&sequence, count}});
    ASSERT_EQ(results.scores.size(), 1u);
    EXPECT_EQ(results.scores[0].first_position, sequence.num_in_kv + 1);
    const std::vector<float>& part = results.scores[0].logprobs;
    scores.insert(scores.end(), part.begin(), part.end());
    sequence.num_in_kv += count;
    model_->store->Trim(plan, sequence.num_in_kv, &sequence.kv);
  }
  model_->store->Release(&sequence.kv);
  ASSERT_EQ(scores.size(), tokens.size() - 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    double sum = 0;
    for (int v = 0; v < kVocab; ++v) sum += std::exp(double{logits[i * kVocab + v]});
    EXPECT_NEAR(scores[i], logits[i * kVocab + tokens[i + 1]] - std::log(sum), 1e-5) << i;
  }
}

// Attention depends on distances only, and rotations never see a position: a window of a text reads
// the same at its beginning and 200 million tokens in.
TEST_F(Scoring, PositionsNear200MillionAreExact) {
  const auto tokens = RandomTokens(100, kVocab, 5);
  const AttentionPlan plan = Window(48);
  const auto expected = AllLogits(model_.get(), plan, tokens, {512});
  constexpr int64_t kFar = 200'000'000;  // a multiple of the page
  SequenceKv kv;
  kv.first_page = kFar / 16;
  ASSERT_TRUE(model_->store->Extend(plan, kFar, 100, &kv).ok());
  StepBatch batch;
  batch.num_rows = 100;
  batch.slices.push_back(MakeSlice(plan, kv, kFar, 100));
  std::vector<int> rows(100);
  for (int i = 0; i < 100; ++i) rows[i] = i;
  const auto logits = model_->transformer->Forward(batch, tokens, rows);
  EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), expected);
  model_->store->Release(&kv);
}

using Evidence = WithTinyModel;

TEST_F(Evidence, PicksAreThoseThatTheHeadsSee) {
  AttentionPlan plan;
  plan.selection.chunk_tokens = 16;
  plan.selection.num_free_picks = 2;
  plan.stages.push_back({.rows_end = 64});
  plan.stages.push_back({.keys = AttentionStage::Keys::kChunks,
                         .distance = AttentionStage::Distance::kCompacted,
                         .rows_begin = 64});
  const auto tokens = RandomTokens(250, kVocab, 7);
  Stream stream(model_.get(), plan);
  StepBatch batch;
  batch.num_rows = 250;
  batch.slices.push_back(stream.Next(0, 250));
  batch.slices[0].picks = std::make_shared<ChunkPicks>();
  const ChunkPicks& picks = *batch.slices[0].picks;
  const std::vector<int> last = {249};
  model_->transformer->Forward(batch, tokens, last);
  ASSERT_EQ(picks.picks.size(), 2u * 4 * 2);
  for (size_t i = 0; i < picks.picks.size(); i += 2) {
    // Query 249 is in chunk 15: candidates 1 to 13, best first.
    EXPECT_GE(picks.picks[i].score, picks.picks[i + 1].score);
    EXPECT_NE(picks.picks[i].chunk, picks.picks[i + 1].chunk);
    for (size_t j : {i, i + 1}) {
      EXPECT_GE(picks.picks[j].chunk, 1);
      EXPECT_LE(picks.picks[j].chunk, 13);
    }
  }
}

TEST(EvidenceCounter, CountsVotesByLayerGroup) {
  // Two layers of two heads with two picks each.
  ChunkPicks picks;
  picks.picks = {{5, 1}, {3, 0}, {5, 1}, {-1, 0}, {3, 2}, {5, 1}, {7, 1}, {5, 0}};
  EvidenceCounter counter;
  ChunkSelection selection;
  selection.num_free_picks = 2;
  counter.Add(picks, selection, 2);
  counter.Add(picks, selection, 2);
  const std::vector<EvidenceEvent::Span> spans = counter.Spans(16, 120, 2);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].token_begin, 80);
  EXPECT_EQ(spans[0].token_end, 96);
  EXPECT_EQ(spans[0].votes, 8);
  EXPECT_THAT(spans[0].votes_by_layer_group, testing::ElementsAre(4, 4));
  EXPECT_DOUBLE_EQ(spans[0].share, 8.0 / 14);
  EXPECT_EQ(spans[1].token_begin, 48);
  EXPECT_EQ(counter.Spans(16, 120, 9).back().token_end, 120);
  const std::vector<EvidenceEvent::Layer> layers = counter.Layers();
  ASSERT_EQ(layers.size(), 2u);
  ASSERT_EQ(layers[1].chunks.size(), 3u);
  EXPECT_EQ(layers[0].chunks[1].chunk, 5);
  EXPECT_EQ(layers[0].chunks[1].votes, 4);
  EXPECT_EQ(layers[0].chunks[1].first_votes, 4);
  EXPECT_EQ(layers[1].chunks[1].chunk, 5);
  EXPECT_EQ(layers[1].chunks[1].first_votes, 0);
}

}  // namespace
}  // namespace folio::test
