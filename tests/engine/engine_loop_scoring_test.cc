// Scored streams in the serving loop.
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

TEST_F(EngineLoopTest, AScoredStreamHoldsBackItsLastTokenUntilTheNextOneIsKnown) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), recorder);
  loop_.scorings().Append(1, std::vector<int32_t>(100, 4));
  RunUntilIdle();
  EXPECT_EQ(recorder->num_scored(), 99);
  loop_.scorings().Append(1, {5});
  RunUntilIdle();
  EXPECT_EQ(recorder->num_scored(), 100);
  EXPECT_FALSE(recorder->ended());
  loop_.scorings().Finish(1);
  ASSERT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(recorder->completed()->usage.prompt_tokens, 101);
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, AScoredStreamOfAnyLengthFitsUnderAWindow) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("lm_infinite"), recorder);
  int64_t most = 0;
  for (int part = 0; part < 100; ++part) {
    loop_.scorings().Append(1, std::vector<int32_t>(1000, 4));
    RunUntilIdle();
    most = std::max(most, store_->used_page_bytes());
  }
  EXPECT_EQ(recorder->num_scored(), 100 * 1000 - 1);
  EXPECT_LE(most, 30 * 4096);  // 256 tokens of window and a step of pages, and the sinks
  loop_.scorings().Finish(1);
  EXPECT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, AScoredStreamWithoutMemoryFailsAlone) {
  auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), stream);
  auto request = Submit(2, Spec(10, 3));
  for (int part = 0; part < 3 && !stream->ended(); ++part) {
    loop_.scorings().Append(1, std::vector<int32_t>(1000, 4));
    RunUntilIdle();
  }
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(request->completed().has_value());
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, APromptIsRatedInItsPrefillAndNotInTheAnswer) {
  GenerateSpec spec = Spec(200, 5);
  spec.prompt_logprobs = true;
  spec.echo = true;
  auto rated = Submit(1, spec);
  auto other = Submit(2, Spec(100, 30));
  RunUntilIdle();
  EXPECT_EQ(rated->num_prompt_logprobs(), 199);
  EXPECT_EQ(rated->prompt_text(), std::string(200, 'd'));
  EXPECT_EQ(rated->text(), "fffff");
  EXPECT_EQ(rated->completed()->usage.completion_tokens, 5);
  EXPECT_EQ(other->num_prompt_logprobs(), 0);
  EXPECT_EQ(other->prompt_text(), "");
  EXPECT_EQ(other->tokens(), 30);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, AQuestionIsRatedBehindItsDocument) {
  const DocumentHandle document = Upload("book", 40);
  GenerateSpec spec = Spec(7, 5, document);
  spec.prompt_logprobs = true;
  spec.echo = true;
  auto asked = Submit(1, spec);
  RunUntilIdle();
  EXPECT_EQ(asked->num_prompt_logprobs(), 6);
  EXPECT_EQ(asked->prompt_text(), "ddddddd");
  EXPECT_EQ(asked->completed()->usage.cached_tokens, 40);
}

TEST_F(EngineLoopTest, APromptWhoseLogitsAreNotFiniteFailsAlone) {
  runner_.not_finite = {{1, 33}};
  GenerateSpec spec = Spec(60, 5);
  spec.prompt_logprobs = true;
  auto bad = Submit(1, spec);
  auto good = Submit(2, Spec(60, 5));
  RunUntilIdle();
  EXPECT_EQ(bad->status(),
            absl::DataLossError("the model gave logits that are not finite at token 33"));
  EXPECT_EQ(good->text(), "fffff");
  EXPECT_EQ(loop_.counters().nonfinite_logits, 1);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, ACancelledScoredStreamFreesItsMemory) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(7, Attention("full"), recorder);
  loop_.scorings().Append(7, std::vector<int32_t>(500, 4));
  loop_.RunStep();
  loop_.Cancel(7, absl::CancelledError("gone"));
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->used_page_bytes() + store_->reserved_bytes(), 0);
}

}  // namespace
}  // namespace folio::test
