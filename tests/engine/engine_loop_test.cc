// The serving loop: admission, documents, cancellation, deadlines, failures.
#include "engine/runtime/engine_loop.h"

#include <atomic>
#include <random>

#include "engine/attention/strategy_registry.h"
#include "engine/runtime/engine_thread.h"
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

TEST_F(EngineLoopTest, AnswersAndFreesItsMemory) {
  auto recorder = Submit(1, Spec(20, 5));
  RunUntilIdle();
  ASSERT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(recorder->completed()->reason, FinishReason::kLength);
  EXPECT_EQ(recorder->completed()->usage.prompt_tokens, 20);
  EXPECT_EQ(recorder->completed()->usage.completion_tokens, 5);
  EXPECT_EQ(recorder->text(), "fffff");
  EXPECT_EQ(runner_.steps, 5);  // the prefill gives the first token, the last one is not run
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, WhoseLogitsAreNotFiniteFailsAlone) {
  for (const bool ahead : {false, true}) {
    runner_.ahead = ahead;
    runner_.not_finite = {{1, 22}, {3, 7}};
    auto bad = Submit(1, Spec(20, 5));
    auto good = Submit(2, Spec(20, 5));
    auto scored = std::make_shared<Recorder>();
    loop_.scorings().Open(3, Attention("full"), scored);
    loop_.scorings().Append(3, std::vector<int32_t>(30, 4));
    RunUntilIdle();
    EXPECT_EQ(bad->status(),
              absl::DataLossError("the model gave logits that are not finite at token 22"));
    EXPECT_EQ(bad->tokens(), 2);
    EXPECT_EQ(scored->status(),
              absl::DataLossError("the model gave logits that are not finite at token 7"));
    EXPECT_EQ(scored->num_scored(), 0);
    ASSERT_TRUE(good->completed().has_value());
    EXPECT_EQ(good->text(), "fffff");
    EXPECT_EQ(store_->reserved_bytes(), 0);
  }
  EXPECT_EQ(loop_.counters().nonfinite_logits, 4);
}

TEST_F(EngineLoopTest, StopsAtStopTokensAndStopStrings) {
  GenerateSpec by_token = Spec(3, 50);
  by_token.stop.stop_token_ids = {5};
  auto first = Submit(1, std::move(by_token));
  GenerateSpec by_string = Spec(3, 50);
  by_string.stop.stop_strings = {"fff"};
  auto second = Submit(2, std::move(by_string));
  RunUntilIdle();
  EXPECT_EQ(first->completed()->stop_token, 5);
  EXPECT_EQ(first->text(), "");
  EXPECT_EQ(second->completed()->stop_string, "fff");
  EXPECT_EQ(second->completed()->usage.completion_tokens, 3);
  EXPECT_EQ(second->text(), "");
}

TEST_F(EngineLoopTest, StopStringsAreLookedForAfterTheLeastNumberOfTokens) {
  GenerateSpec spec = Spec(3, 50);
  spec.stop.stop_strings = {"ff"};
  spec.stop.min_new_tokens = 3;
  auto recorder = Submit(1, std::move(spec));
  RunUntilIdle();
  EXPECT_EQ(recorder->completed()->stop_string, "ff");
  EXPECT_EQ(recorder->completed()->usage.completion_tokens, 5);
  EXPECT_EQ(recorder->text(), "fff");
}

TEST_F(EngineLoopTest, ARequestThatMayDrawNoTokenFailsAlone) {
  GenerateSpec spec = Spec(3, 50);
  spec.sampling.bad_words = {{4}, {runner_.answer, runner_.answer}};
  auto one = Submit(1, std::move(spec));
  auto other = Submit(2, Spec(3, 5));
  RunUntilIdle();
  // The runner gives the token all the same, as backends do where no other one is left.
  EXPECT_EQ(one->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(one->text(), "f");
  EXPECT_EQ(other->text(), "fffff");
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, CancelFreesMemoryAtOnceInQueuePrefillAndDecode) {
  auto decoding = Submit(1, Spec(5, 400));
  loop_.RunStep();
  auto prefilling = Submit(2, Spec(600, 10));
  loop_.RunStep();
  auto queued = Submit(3, Spec(90 * 16, 10));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_waiting(), 1);
  const int64_t used = store_->used_page_bytes();
  loop_.Cancel(2, absl::CancelledError("gone"));
  EXPECT_LT(store_->used_page_bytes(), used);
  loop_.Cancel(3, absl::CancelledError("gone"));
  EXPECT_EQ(loop_.num_waiting(), 0);
  loop_.Cancel(1, absl::CancelledError("gone"));
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  for (const auto& recorder : {decoding, prefilling, queued}) {
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  }
  loop_.Cancel(99, absl::CancelledError("unknown ids are ignored"));
}

TEST_F(EngineLoopTest, ExpiredDeadlineEndsAQueuedRequest) {
  auto running = Submit(1, Spec(90 * 16, 10));
  loop_.RunStep();
  GenerateSpec late = Spec(90 * 16, 10);
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  auto queued = Submit(2, std::move(late));
  loop_.RunStep();
  EXPECT_EQ(queued->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(running->ended());
}

TEST_F(EngineLoopTest, RequestsWaitForMemoryInTheirOrder) {
  auto first = Submit(1, Spec(60 * 16, 2));
  auto second = Submit(2, Spec(60 * 16, 2));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 1);
  EXPECT_EQ(loop_.num_waiting(), 1);
  RunUntilIdle();
  EXPECT_TRUE(first->completed().has_value());
  EXPECT_TRUE(second->completed().has_value());
}

TEST_F(EngineLoopTest, QuestionsShareTheDocumentAndPrefillOnlyThemselves) {
  const DocumentHandle document = Upload("d", 500);
  const int64_t document_bytes = store_->used_page_bytes();
  runner_.tokens = 0;
  auto one = Submit(1, Spec(3, 2, document));
  auto two = Submit(2, Spec(4, 2, document));
  RunUntilIdle();
  EXPECT_EQ(runner_.tokens, 3 + 4 + 1 + 1);
  EXPECT_EQ(one->completed()->usage.cached_tokens, 500);
  EXPECT_EQ(one->completed()->usage.prompt_tokens, 503);
  EXPECT_EQ(one->completed()->memory.device_kv_bytes_peak, 4096);  // the copied last page
  EXPECT_EQ(store_->used_page_bytes(), document_bytes);
  Delete(document);
  EXPECT_EQ(store_->used_page_bytes(), 0);
}

TEST_F(EngineLoopTest, AnotherStrategyMakesItsOwnRenditionOnce) {
  const DocumentHandle document = Upload("d", 300);
  for (RequestId id : {1, 2}) {
    GenerateSpec spec = Spec(3, 2, document);
    spec.attention = Attention("lm_infinite");
    runner_.tokens = 0;
    auto recorder = Submit(id, std::move(spec));
    RunUntilIdle();
    ASSERT_TRUE(recorder->completed().has_value());
    EXPECT_EQ(runner_.tokens, (id == 1 ? 300 : 0) + 4);
    EXPECT_EQ(recorder->completed()->usage.cached_tokens, id == 1 ? 0 : 300);
  }
}

TEST_F(EngineLoopTest, DeletedDocumentLivesUntilItsLastQuestionEnds) {
  const DocumentHandle document = Upload("d", 300);
  auto recorder = Submit(1, Spec(3, 50, document));
  loop_.RunStep();
  Delete(document);
  auto late = Submit(2, Spec(3, 5, document));
  EXPECT_EQ(late->status().code(), absl::StatusCode::kNotFound);
  RunUntilIdle();
  EXPECT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, DocumentTooLargeForThePoolFailsAloneAndLetsGo) {
  auto sink = std::make_shared<Recorder>();
  const DocumentHandle big = Open("big", sink);
  Append(big, 101 * 16);
  EXPECT_EQ(directory_.Get(big)->state, DocumentState::kFailed);
  EXPECT_EQ(directory_.Get(big)->error, sink->status());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  auto recorder = Submit(1, Spec(3, 2));
  RunUntilIdle();
  EXPECT_TRUE(recorder->completed().has_value());
}

TEST_F(EngineLoopTest, PausedUploadStopsAndResumes) {
  const DocumentHandle document = Open("d");
  Append(document, 200);
  loop_.RunStep();
  loop_.documents().Pause(document);
  EXPECT_FALSE(loop_.RunStep());
  auto sink = std::make_shared<Recorder>();
  loop_.documents().Follow(document, sink);
  Finish(document);
  RunUntilIdle();
  EXPECT_TRUE(sink->completed().has_value());
}

TEST_F(EngineLoopTest, UnusedRenditionsAreEvictedForARequest) {
  const DocumentHandle document = Upload("d", 30 * 16);
  GenerateSpec other = Spec(3, 2, document);
  other.attention = Attention("lm_infinite");
  Submit(1, std::move(other));
  RunUntilIdle();
  const int64_t with_both = store_->reserved_bytes();
  auto big = Submit(2, Spec(69 * 16, 2));
  RunUntilIdle();
  EXPECT_TRUE(big->completed().has_value());
  EXPECT_LT(store_->reserved_bytes(), with_both);
}

TEST_F(EngineLoopTest, RequestThatDocumentsLeaveNoRoomForFailsWithAReason) {
  Upload("d", 60 * 16);
  auto recorder = Submit(1, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(recorder->status().message().find("delete documents"), std::string::npos);
}

// 1,000 requests, about half of them cancelled at random moments from other threads.
TEST_F(EngineLoopTest, AThousandCancellationsLeaveNothingBehind) {
  {
    EngineThread thread(&loop_, store_.get());
    std::mt19937 random(7);
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (RequestId id = 1; id <= 1000; ++id) {
      auto recorder = std::make_shared<Recorder>();
      recorders.push_back(recorder);
      auto generation = std::make_shared<std::unique_ptr<Generation>>(std::make_unique<Generation>(
          Spec(1 + random() % 300, 1 + random() % 20), recorder, tokenizer_, kEos));
      thread.Post(
          {[id, generation](EngineLoop& loop) { loop.Submit(id, std::move(*generation)); }});
      if (random() % 4 == 0) recorder->WaitForTokens(1 + random() % 3);
      if (random() % 2 == 0) {
        thread.Post({[id](EngineLoop& loop) { loop.Cancel(id, absl::CancelledError("gone")); }});
      }
    }
    for (const auto& recorder : recorders) recorder->WaitForEnd();
  }
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, ShutdownFailsWhatRunsWithUnavailable) {
  auto recorder = std::make_shared<Recorder>();
  {
    EngineThread thread(&loop_, store_.get());
    auto generation = std::make_shared<std::unique_ptr<Generation>>(
        std::make_unique<Generation>(Spec(5, 1000), recorder, tokenizer_, kEos));
    thread.Post({[generation](EngineLoop& loop) { loop.Submit(1, std::move(*generation)); }});
    recorder->WaitForTokens(1);
  }
  EXPECT_TRUE(recorder->ended());
  if (!recorder->completed().has_value()) {
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kUnavailable);
  }
}

// Whatever a device says after it has failed means nothing.
TEST_F(EngineLoopTest, AFailedDeviceFailsWhatRunsAndWhatComes) {
  Upload("book", 40);
  auto running = Submit(1, Spec(10, 100));
  auto waiting = Submit(2, Spec(1500, 5));
  ASSERT_TRUE(loop_.RunStep());
  const int tokens = running->tokens();
  runner_.device = absl::InternalError("an illegal memory access was encountered");
  EXPECT_FALSE(loop_.RunStep());
  EXPECT_EQ(running->tokens(), tokens);
  for (const auto& recorder : {running, waiting}) {
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(recorder->status().message().find("illegal memory"), std::string::npos);
  }
  const int steps = runner_.steps;
  auto late = Submit(3, Spec(10, 5));
  EXPECT_FALSE(loop_.RunStep());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(runner_.steps, steps);
  EXPECT_EQ(num_device_failures_, 1);
}

// A device that takes the next step before it has finished this one.
class RunningAhead : public EngineLoopTest {
 protected:
  RunningAhead() { runner_.ahead = true; }
};

TEST_F(RunningAhead, AnswersAreTheSameAndStepsOverlap) {
  auto one = Submit(1, Spec(10, 20));
  auto two = Submit(2, Spec(70, 7));
  RunUntilIdle();
  for (const auto& [recorder, tokens] : {std::pair{one, 20}, {two, 7}}) {
    ASSERT_TRUE(recorder->completed().has_value()) << recorder->status();
    EXPECT_EQ(recorder->tokens(), tokens);
    EXPECT_EQ(recorder->completed()->usage.completion_tokens, tokens);
  }
  EXPECT_EQ(runner_.most_started, 2u);
  // Nothing ran beyond the lengths that were known: 10 + 70 prompt tokens, 19 + 6 fed back.
  EXPECT_EQ(runner_.tokens, 10 + 70 + 19 + 6);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  EXPECT_EQ(store_->used_page_bytes(), 0);
}

TEST_F(RunningAhead, AnAnswerThatEndsEarlyCostsOneStepAndNothingElse) {
  auto one = Submit(1, Spec(10, 50));
  auto other = Submit(2, Spec(10, 12));
  while (one->tokens() < 5) ASSERT_TRUE(loop_.RunStep());
  runner_.answer = kEos[0];
  ASSERT_TRUE(loop_.RunStep());
  ASSERT_TRUE(loop_.RunStep());
  EXPECT_TRUE(one->completed().has_value());
  EXPECT_TRUE(other->completed().has_value());
  EXPECT_EQ(one->completed()->reason, FinishReason::kStop);
  RunUntilIdle();  // what was started meanwhile is thrown away
  EXPECT_EQ(store_->reserved_bytes(), 0);
  EXPECT_EQ(store_->used_page_bytes(), 0);
}

TEST_F(RunningAhead, ACancelledRequestsLastStepIsForNobody) {
  auto one = Submit(1, Spec(10, 50));
  while (one->tokens() < 5) ASSERT_TRUE(loop_.RunStep());
  loop_.Cancel(1, absl::CancelledError("gone"));
  EXPECT_EQ(store_->used_page_bytes(), 0);
  auto two = Submit(2, Spec(10, 6));
  RunUntilIdle();
  EXPECT_EQ(two->tokens(), 6);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(RunningAhead, APenaltyWaitsForTheLastToken) {
  SamplingParams divides, subtracts;
  divides.repetition_penalty = 1.2f;
  subtracts.presence_penalty = 1.2f;
  SamplingParams masks;
  masks.bad_words = {{4, 4}};
  for (const SamplingParams& sampling : {divides, subtracts, masks}) {
    GenerateSpec spec = Spec(10, 10);
    spec.sampling = sampling;
    auto one = Submit(1, spec);
    RunUntilIdle();
    EXPECT_EQ(one->tokens(), 10);
    EXPECT_EQ(runner_.most_started, 1u);
  }
}

TEST_F(RunningAhead, ChangesThatStayDoNotWaitForTheLastToken) {
  GenerateSpec spec = Spec(10, 20);
  spec.sampling.logit_bias = {{4, 1.0f}};
  spec.sampling.bad_words = {{7}};
  auto one = Submit(1, spec);
  RunUntilIdle();
  EXPECT_EQ(one->text(), std::string(20, 'f'));
  EXPECT_EQ(runner_.most_started, 2u);
}

TEST_F(RunningAhead, ALeastNumberOfTokensWaitsUntilItIsReached) {
  GenerateSpec spec = Spec(10, 20);
  spec.stop.min_new_tokens = 5;
  auto one = Submit(1, spec);
  while (one->tokens() < 5) ASSERT_TRUE(loop_.RunStep());
  EXPECT_EQ(runner_.most_started, 1u);
  RunUntilIdle();
  EXPECT_EQ(one->text(), std::string(20, 'f'));
  EXPECT_EQ(runner_.most_started, 2u);
}

TEST_F(RunningAhead, AFailedDeviceFailsWhatRunsAhead) {
  auto one = Submit(1, Spec(10, 50));
  while (one->tokens() < 5) ASSERT_TRUE(loop_.RunStep());
  runner_.device = absl::InternalError("lost");
  while (loop_.RunStep()) {
  }
  EXPECT_EQ(one->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(num_device_failures_, 1);
}

TEST_F(EngineLoopTest, ARequestThatTheDeviceHasNoRoomForFailsAlone) {
  runner_.has_no_room = [](const Sequence& sequence) { return sequence.id == 1; };
  auto failed = Submit(1, Spec(10, 20));
  auto other = Submit(2, Spec(10, 20));
  RunUntilIdle();
  EXPECT_EQ(failed->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(failed->status().message().find("no room for this one"), std::string::npos);
  EXPECT_EQ(other->tokens(), 20);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

// A question that reads a document under another strategy waits for a rendition of it.
TEST_F(EngineLoopTest, ARenditionThatGetsNoRoomFailsThoseThatWaitForIt) {
  const DocumentHandle book = Upload("book", 40);
  runner_.has_no_room = [](const Sequence& sequence) { return sequence.plan.selection.enabled(); };
  GenerateSpec spec = Spec(5, 5, book);
  spec.attention = Attention("long_heads");
  auto failed = Submit(1, spec);
  auto other = Submit(2, Spec(5, 5, book));
  RunUntilIdle();
  EXPECT_EQ(failed->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(other->completed().has_value()) << other->status();
  runner_.has_no_room = [](const Sequence&) { return false; };
  auto later = Submit(3, spec);
  RunUntilIdle();
  EXPECT_TRUE(later->completed().has_value()) << later->status();
}

}  // namespace
}  // namespace folio::test
