// Several answers to one prompt: it is computed once, whatever becomes of single answers.
#include "engine/runtime/shared_prompts.h"

#include <random>

#include "gmock/gmock.h"
#include "tests/engine/engine_loop_fixture.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kPageBytes = 4096;

class SharedPromptsTest : public EngineLoopTest {
 protected:
  using Answers = std::vector<std::shared_ptr<Recorder>>;

  Answers SubmitAll(int num_answers, GenerateSpec spec) {
    spec.num_answers = num_answers;
    const RequestId first = last_id_ + 1;
    Answers answers;
    for (int n = 0; n < num_answers; ++n) {
      spec.first_answer = n == 0 ? 0 : first;
      answers.push_back(Submit(++last_id_, spec));
    }
    return answers;
  }
  static std::vector<std::string> TextsOf(const Answers& answers) {
    std::vector<std::string> texts;
    for (const auto& answer : answers) {
      EXPECT_TRUE(answer->completed().has_value()) << answer->status();
      texts.push_back(answer->text());
    }
    return texts;
  }
  static std::vector<int64_t> CachedOf(const Answers& answers) {
    std::vector<int64_t> cached;
    for (const auto& answer : answers) cached.push_back(answer->completed()->usage.cached_tokens);
    return cached;
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(store_->used_page_bytes(), 0);
    EXPECT_EQ(store_->reserved_bytes(), 0);
    EXPECT_FALSE(loop_.RunStep());
  }
  void Cancel(RequestId id) { loop_.Cancel(id, absl::CancelledError("enough")); }

  RequestId last_id_ = 0;
};

TEST_F(SharedPromptsTest, ThePromptIsComputedOnceAndItsLastTokenByEach) {
  const Answers answers = SubmitAll(4, Spec(200, 3));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("fff"));
  EXPECT_EQ(runner_.tokens, 199 + 4 * (1 + 2));
  EXPECT_EQ(loop_.counters().prefill_tokens, 199 + 4);
  EXPECT_THAT(CachedOf(answers), ElementsAre(0, 199, 199, 199));
  EXPECT_EQ(loop_.counters().cached_tokens, 3 * 199);
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->completed()->usage.prompt_tokens, 200);
    EXPECT_EQ(answer->completed()->memory.device_kv_bytes_peak, kPageBytes);
    EXPECT_EQ(answer->completed()->memory.shared_kv_bytes, 12 * kPageBytes);
  }
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, AQuestionAboutADocumentIsComputedOnceBehindIt) {
  const DocumentHandle document = Upload("d", 500);
  runner_.tokens = 0;
  const Answers answers = SubmitAll(3, Spec(20, 2, document));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("ff"));
  EXPECT_EQ(runner_.tokens, 19 + 3 * (1 + 1));
  EXPECT_THAT(CachedOf(answers), ElementsAre(500, 519, 519));
  Delete(document);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, TheCacheOfADocumentThatIsMadeForTheQuestionComesFirst) {
  const DocumentHandle document = Upload("d", 300);
  GenerateSpec spec = Spec(20, 2, document);
  spec.attention = Attention("lm_infinite");
  runner_.tokens = 0;
  const Answers answers = SubmitAll(3, std::move(spec));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("ff"));
  EXPECT_EQ(runner_.tokens, 300 + 19 + 3 * (1 + 1));
  EXPECT_THAT(CachedOf(answers), ElementsAre(0, 319, 319));
}

TEST_F(SharedPromptsTest, CutPromptsAreSharedAsTheyWereCut) {
  GenerateSpec spec = Spec(900, 3);
  spec.attention = *ResolveAttention({{"truncation", {}}, {}}, {}, Model(), {903, false});
  const Answers alone = {Submit(++last_id_, spec)};
  RunUntilIdle();
  ASSERT_TRUE(alone[0]->completed().has_value()) << alone[0]->status();
  const int64_t kept = alone[0]->completed()->usage.prompt_tokens;
  EXPECT_LT(kept, 900);
  runner_.tokens = 0;
  const Answers answers = SubmitAll(3, std::move(spec));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("fff"));
  EXPECT_EQ(runner_.tokens, kept - 1 + 3 * (1 + 2));
}

TEST_F(SharedPromptsTest, AnEchoIsSharedAndLogprobsOfThePromptAreNot) {
  for (const bool with_logprobs : {false, true}) {
    GenerateSpec spec = Spec(100, 2);
    spec.echo = true;
    spec.prompt_logprobs = with_logprobs;
    runner_.tokens = 0;
    const Answers answers = SubmitAll(3, std::move(spec));
    RunUntilIdle();
    EXPECT_THAT(TextsOf(answers), Each("ff"));
    for (const auto& answer : answers) {
      EXPECT_EQ(answer->prompt_text(), std::string(100, 'd'));
      EXPECT_EQ(answer->num_prompt_logprobs(), with_logprobs ? 99 : 0);
    }
    EXPECT_EQ(runner_.tokens, with_logprobs ? 3 * (100 + 1) : 99 + 3 * (1 + 1));
  }
}

// Whoever submits them says that they are the same; the loop looks.
TEST_F(SharedPromptsTest, WhoAsksOtherwiseComputesItsOwn) {
  GenerateSpec spec = Spec(100, 2);
  spec.num_answers = 5;
  Answers answers = {Submit(1, spec)};
  spec.first_answer = 1;
  GenerateSpec other = spec;
  other.tokens[50] = 4;
  answers.push_back(Submit(2, other));
  other = spec;
  other.tokens.push_back(3);
  answers.push_back(Submit(3, other));
  other = spec;
  other.attention = Attention("lm_infinite");
  answers.push_back(Submit(4, other));
  other = spec;
  other.tenant = NamedTenant("other");
  answers.push_back(Submit(5, other));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("ff"));
  EXPECT_THAT(CachedOf(answers), Each(0));
  EXPECT_EQ(runner_.tokens, 4 * 100 + 101 + 5);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, OneTokenIsNotShared) {
  const Answers answers = SubmitAll(3, Spec(1, 2));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each("ff"));
  EXPECT_EQ(runner_.tokens, 3 * 2);
}

TEST_F(SharedPromptsTest, TheFirstOneIsCancelledInTheQueue) {
  const Answers answers = SubmitAll(3, Spec(200, 3));
  Cancel(1);
  RunUntilIdle();
  EXPECT_THAT(TextsOf({answers[1], answers[2]}), Each("fff"));
  EXPECT_EQ(runner_.tokens, 199 + 2 * (1 + 2));
  EXPECT_THAT(CachedOf({answers[1], answers[2]}), ElementsAre(0, 199));
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, TheFirstOneIsCancelledInThePrefill) {
  const Answers answers = SubmitAll(3, Spec(200, 3));
  loop_.RunStep();
  EXPECT_LT(runner_.tokens, 199);
  Cancel(1);
  RunUntilIdle();
  EXPECT_THAT(TextsOf({answers[1], answers[2]}), Each("fff"));
  EXPECT_EQ(runner_.tokens, 199 + 2 * (1 + 2));
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, TheFirstOneIsCancelledInItsAnswerBeforeOthersBegin) {
  GenerateSpec spec = Spec(200, 300);
  spec.num_answers = 2;
  const auto first = Submit(1, spec);
  while (first->tokens() < 2) ASSERT_TRUE(loop_.RunStep());
  spec.first_answer = 1;
  const auto second = Submit(2, spec);
  Cancel(1);
  RunUntilIdle();
  ASSERT_TRUE(second->completed().has_value()) << second->status();
  EXPECT_EQ(second->completed()->usage.cached_tokens, 199);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, TheFirstOneEndsAtItsFirstToken) {
  GenerateSpec spec = Spec(200, 3);
  spec.num_answers = 2;
  GenerateSpec first = spec;
  first.stop.stop_token_ids = {5};
  const auto ended = Submit(1, first);
  spec.first_answer = 1;
  const auto other = Submit(2, spec);
  RunUntilIdle();
  EXPECT_EQ(ended->completed()->stop_token, 5);
  EXPECT_EQ(other->text(), "fff");
  EXPECT_EQ(runner_.tokens, 199 + 1 + 3);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, APromptThatNobodyWaitsForStopsAndFreesItsMemory) {
  SubmitAll(3, Spec(600, 3));
  loop_.RunStep();
  EXPECT_GT(store_->used_page_bytes(), 0);
  for (RequestId id : {3, 1, 2}) Cancel(id);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, APromptWithoutMemoryFailsItsAnswersAndNobodyElse) {
  runner_.has_no_room = [](const Sequence& sequence) { return sequence.id == 0; };
  const Answers answers = SubmitAll(3, Spec(200, 3));
  const auto other = Submit(++last_id_, Spec(20, 3));
  RunUntilIdle();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->status().code(), absl::StatusCode::kResourceExhausted) << answer->status();
  }
  EXPECT_EQ(other->text(), "fff");
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, AStepThatFailsEndsTheAnswersOfItsPrompt) {
  for (bool* const throws : {&runner_.start_throws, &runner_.finish_throws}) {
    *throws = true;
    const Answers answers = SubmitAll(3, Spec(200, 3));
    RunUntilIdle();
    for (const auto& answer : answers) {
      EXPECT_EQ(answer->status().code(), absl::StatusCode::kResourceExhausted) << answer->status();
    }
    ExpectNothingHeld();
  }
}

// 40 pages of the prompt, and 16 of each answer; alone it would be 55.
TEST_F(SharedPromptsTest, EightAnswersInMemoryForThree) {
  const Answers answers = SubmitAll(8, Spec(640, 240));
  int most_running = 0;
  while (loop_.RunStep()) {
    most_running = std::max(most_running, loop_.num_running());
    EXPECT_LE(store_->reserved_bytes(), (40 + 3 * 16) * kPageBytes);
  }
  EXPECT_EQ(most_running, 3);
  EXPECT_THAT(TextsOf(answers), Each(std::string(240, 'f')));
  EXPECT_EQ(runner_.tokens, 639 + 8 * (1 + 239));
  ExpectNothingHeld();
}

// The prompt has 99 pages, and an answer of its own 2: one that computes all has just the 100.
TEST_F(SharedPromptsTest, WhatFitsOnlyAloneIsComputedAlone) {
  const Answers answers = SubmitAll(3, Spec(1580, 20));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each(std::string(20, 'f')));
  EXPECT_THAT(CachedOf(answers), Each(0));
  EXPECT_EQ(loop_.counters().cached_tokens, 0);
  EXPECT_EQ(runner_.tokens, 3 * (1580 + 19));
  ExpectNothingHeld();
}

// Nothing runs: a prompt that only waits for memory would keep it from the next request for good.
TEST_F(SharedPromptsTest, APromptLetsGoOfItsMemoryWhereNothingElseWould) {
  const TenantPtr tenant = NamedTenant("a");
  GenerateSpec spec = Spec(720, 320);  // 45 pages, and 21 for each answer
  spec.tenant = tenant;
  const Answers answers = SubmitAll(2, std::move(spec));
  loop_.RunStep();
  const auto running = Submit(++last_id_, Spec(20, 600));  // 39 pages, to the end of the prefill
  while (runner_.tokens < 719) ASSERT_TRUE(loop_.RunStep());
  GenerateSpec large = Spec(1200, 80);  // 80 pages
  large.tenant = tenant;
  large.priority = -100;
  const auto urgent = Submit(++last_id_, std::move(large));
  while (!running->ended()) ASSERT_TRUE(loop_.RunStep());
  EXPECT_EQ(loop_.num_running(), 0);
  RunUntilIdle();
  EXPECT_TRUE(urgent->completed().has_value()) << urgent->status();
  EXPECT_THAT(TextsOf(answers), Each(std::string(320, 'f')));
  EXPECT_EQ(runner_.tokens, 2 * 719 + 2 * 320 + 20 + 599 + 1200 + 79);
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, ATenantPaysForAPromptOnce) {
  const TenantPtr limited = std::make_shared<Tenant>(
      Tenant{.name = "limited", .limits = {.max_kv_bytes = 60 * kPageBytes}});
  GenerateSpec spec = Spec(720, 48);  // 45 pages, and 4 for each answer; alone 48
  spec.tenant = limited;
  const Answers answers = SubmitAll(4, std::move(spec));
  const TenantAccounts::Account account = loop_.accounts().Open(limited);
  int most_running = 0;
  while (loop_.RunStep()) {
    EXPECT_LE(account->share.reserved_bytes, 60 * kPageBytes);
    most_running = std::max(most_running, loop_.num_running());
  }
  EXPECT_EQ(most_running, 3);
  EXPECT_THAT(TextsOf(answers), Each(std::string(48, 'f')));
  EXPECT_EQ(runner_.tokens, 719 + 4 * 48);
  EXPECT_EQ(account->share.reserved_bytes, 0);
}

TEST_F(SharedPromptsTest, ATenantThatMayNotHaveBothComputesItAlone) {
  const TenantPtr limited = std::make_shared<Tenant>(
      Tenant{.name = "limited", .limits = {.max_kv_bytes = 48 * kPageBytes}});
  GenerateSpec spec = Spec(720, 48);
  spec.tenant = limited;
  const Answers answers = SubmitAll(2, std::move(spec));
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each(std::string(48, 'f')));
  EXPECT_EQ(runner_.tokens, 2 * (720 + 47));
  ExpectNothingHeld();
}

TEST_F(SharedPromptsTest, AnAnswerThatGivesItsPlaceAwayGoesOnWhereItWas) {
  GenerateSpec spec = Spec(200, 50);
  spec.tenant = NamedTenant("a");
  const Answers answers = SubmitAll(4, std::move(spec));
  while (answers[3]->tokens() < 2) ASSERT_TRUE(loop_.RunStep());
  GenerateSpec question = Spec(10, 2);
  question.tenant = NamedTenant("b");
  const auto other = Submit(++last_id_, std::move(question));
  while (!other->ended()) ASSERT_TRUE(loop_.RunStep());
  EXPECT_EQ(loop_.num_running(), 3);
  RunUntilIdle();
  EXPECT_THAT(TextsOf(answers), Each(std::string(50, 'f')));
  int times_preempted = 0;
  for (const auto& answer : answers) {
    times_preempted += answer->completed()->scheduling.times_preempted;
  }
  EXPECT_EQ(times_preempted, 1);
  EXPECT_EQ(runner_.tokens, 199 + 4 * 50 + 10 + 1);
}

// An upload that lacks room is not failed for a prompt that only waits.
TEST_F(SharedPromptsTest, AnUploadWaitsForTheMemoryOfAPrompt) {
  const Answers answers = SubmitAll(2, Spec(720, 320));
  loop_.RunStep();
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", sink);
  Append(document, 60 * 16);
  Finish(document);
  RunUntilIdle();
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_THAT(TextsOf(answers), Each(std::string(320, 'f')));
}

TEST_F(SharedPromptsTest, ThePromptIsPrefillOfEachAnswerAndNoQueue) {
  runner_.seconds_per_token = 1e-5;
  const Answers answers = SubmitAll(3, Spec(1000, 2));
  RunUntilIdle();
  for (const auto& answer : answers) {
    const CompletedEvent done = *answer->completed();
    EXPECT_GE(done.timings.prefill_seconds, 999e-5);
    EXPECT_NEAR(done.timings.queue_seconds + done.timings.prefill_seconds,
                done.timings.time_to_first_token_seconds, 1e-6);
    EXPECT_NEAR(done.scheduling.turn_seconds + done.scheduling.memory_seconds +
                    done.scheduling.document_seconds,
                done.timings.queue_seconds, 1e-6);
  }
}

TEST_F(SharedPromptsTest, WhateverEndsWhenNothingIsHeldInTheEnd) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  const DocumentHandle document = Upload("d", 100);
  std::vector<std::pair<RequestId, std::shared_ptr<Recorder>>> all;
  for (int n = 0; n < 1000; ++n) {
    if (below(4) == 0 && loop_.num_waiting() < 30) {
      GenerateSpec spec = Spec(1 + below(300), 1 + below(40));
      if (below(2) == 0) spec.document = document;
      if (below(2) == 0) spec.tenant = NamedTenant(below(2) == 0 ? "a" : "b");
      RequestId id = last_id_;
      for (auto& answer : SubmitAll(1 + below(6), std::move(spec))) all.emplace_back(++id, answer);
    }
    const RequestId id = 1 + below(static_cast<int>(last_id_) + 1);
    if (below(8) == 0) Cancel(id);
    if (below(8) == 0) loop_.HoldBack(id);
    if (below(4) == 0) loop_.LetGoOn(id);
    loop_.RunStep();
    ASSERT_LE(store_->used_page_bytes(), store_->reserved_bytes());
    ASSERT_LE(store_->reserved_bytes(), store_->capacity_bytes());
  }
  for (const auto& [id, answer] : all) loop_.LetGoOn(id);
  RunUntilIdle();
  for (const auto& [id, answer] : all) {
    ASSERT_TRUE(answer->ended()) << id;
    if (answer->completed().has_value()) continue;
    // Or others have needed the memory of one that was held back.
    const bool was_ended = absl::IsCancelled(answer->status()) || absl::IsAborted(answer->status());
    EXPECT_TRUE(was_ended) << answer->status();
  }
  Delete(document);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace folio::test
