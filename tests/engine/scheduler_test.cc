#include "engine/sched/scheduler.h"

#include <algorithm>
#include <list>

#include "gtest/gtest.h"

namespace folio {
namespace {

const KvGeometry kGeometry{.num_layers = 1,
                           .num_heads = 1,
                           .num_kv_heads = 1,
                           .head_dim = 32,
                           .padded_dim = 32,
                           .page_tokens = 16,
                           .dtype = DType::kF32};

class SchedulerTest : public testing::Test {
 protected:
  Sequence* Add(int64_t prompt, int64_t max_new, bool generates = true) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.plan.stages.emplace_back();
    sequence.tokens = std::make_shared<std::vector<int32_t>>(prompt);
    sequence.num_known = sequence.num_prompt = prompt;
    sequence.max_tokens = prompt + max_new;
    sequence.generates = generates;
    return &sequence;
  }
  Sequence* Admit(int64_t prompt, int64_t max_new = 10) {
    Sequence* sequence = Add(prompt, max_new);
    EXPECT_TRUE(scheduler_.Admit(sequence));
    return sequence;
  }
  std::vector<ScheduledTokens> Step() {
    const std::vector<ScheduledTokens> step = scheduler_.NextStep();
    EXPECT_TRUE(scheduler_.failures().empty());
    scheduler_.Commit(step);
    for (const ScheduledTokens& part : step) {
      if (part.sequence->num_pending() == 0) {  // a next token was sampled
        part.sequence->tokens->push_back(0);
        ++part.sequence->num_known;
      }
    }
    return step;
  }

  std::list<Sequence> sequences_;
  std::unique_ptr<KvStore> store_ = *KvStore::Create(kGeometry, 4096 * 1000, HostMemory());
  Scheduler scheduler_{{.step_tokens = 64, .prefill_share_tokens = 32}, store_.get()};
};

int TokensOf(const std::vector<ScheduledTokens>& step, const Sequence* sequence) {
  for (const ScheduledTokens& part : step) {
    if (part.sequence == sequence) return part.num_tokens;
  }
  return 0;
}

// 10 ms of a step are its answer's, each token of a prompt takes 2 more.
TEST_F(SchedulerTest, PromptsKeepTheAnswersPace) {
  Scheduler scheduler{{.step_tokens = 64, .prefill_share_tokens = 32, .prefill_slowdown = 3},
                      store_.get()};
  Sequence* answer = Add(1, 60);
  Sequence* prompt = Add(1000, 10);
  ASSERT_TRUE(scheduler.Admit(answer));
  const auto run = [&] {
    const std::vector<ScheduledTokens> step = scheduler.NextStep();
    const int answers = TokensOf(step, answer) > 0 && answer->decoding() ? 1 : 0;
    const int tokens = TokensOf(step, prompt);
    scheduler.Commit(step);
    if (answer->num_pending() == 0) ++answer->num_known;
    scheduler.NoteStep({.num_answers = answers, .prompt_tokens = tokens},
                       0.010 * answers + 0.002 * tokens);
    return tokens;
  };
  run();
  ASSERT_TRUE(answer->decoding());
  ASSERT_TRUE(scheduler.Admit(prompt));
  int longest = 0;
  for (int n = 0; n < 50; ++n) longest = std::max(longest, run());
  // Six tenths of the 20 ms that the bound leaves.
  EXPECT_GE(longest, 6);
  EXPECT_LE(longest, 10);
  EXPECT_EQ(answer->num_in_kv, 51);
  EXPECT_GT(prompt->num_in_kv, 280);
  scheduler.Remove(answer);
  EXPECT_EQ(run(), 64);  // nobody waits
  scheduler.Remove(prompt);
}

// To complete a chunk takes 15 ms more: such a step has no tokens that could wait, and no second
// chunk.
TEST_F(SchedulerTest, ChunksThatPromptsCompleteAreBesideTheirTokens) {
  Scheduler scheduler{{.step_tokens = 64, .prefill_share_tokens = 32, .prefill_slowdown = 3},
                      store_.get()};
  Sequence* answer = Add(1, 300);
  Sequence* prompts[] = {Add(500, 10), Add(600, 10)};
  for (Sequence* prompt : prompts) {
    prompt->plan.selection = {.chunk_tokens = 2 * kGeometry.page_tokens, .num_free_picks = 2};
  }
  ASSERT_TRUE(scheduler.Admit(answer));
  double longest = 0;
  int64_t most_chunks = 0;
  int64_t completed = 0;
  const auto run = [&] {
    const std::vector<ScheduledTokens> step = scheduler.NextStep();
    StepWork work;
    for (const ScheduledTokens& part : step) {
      const bool answers = part.sequence->decoding();
      work.num_answers += answers ? 1 : 0;
      work.prompt_tokens += answers ? 0 : part.num_tokens;
      work.num_chunks += part.sequence->ChunksCompleted(part.num_tokens);
    }
    scheduler.Commit(step);
    if (answer->num_pending() == 0) ++answer->num_known;
    const double seconds =
        0.010 * work.num_answers + 0.002 * work.prompt_tokens + 0.015 * work.num_chunks;
    scheduler.NoteStep(work, seconds);
    longest = std::max(longest, seconds);
    most_chunks = std::max(most_chunks, work.num_chunks);
    completed += work.num_chunks;
  };
  run();
  ASSERT_TRUE(answer->decoding());
  for (Sequence* prompt : prompts) ASSERT_TRUE(scheduler.Admit(prompt));
  while (completed < 2) run();  // what a chunk takes is not known yet
  longest = 0;
  most_chunks = 0;
  for (int n = 0; n < 100; ++n) run();
  EXPECT_LE(longest, 0.030);
  EXPECT_EQ(most_chunks, 1);
  EXPECT_GT(prompts[0]->num_in_kv, 200);
  EXPECT_GT(prompts[1]->num_in_kv, 200);
  scheduler.Remove(answer);
  for (Sequence* prompt : prompts) scheduler.Remove(prompt);
}

// One that takes longer than a whole step may is completed by its last token alone.
TEST_F(SchedulerTest, AChunkThatIsWorthMoreThanAStepIsCompleted) {
  Scheduler scheduler{{.step_tokens = 64, .prefill_share_tokens = 32, .prefill_slowdown = 3},
                      store_.get()};
  Sequence* answer = Add(1, 300);
  Sequence* prompt = Add(500, 10);
  const int64_t w = 2 * kGeometry.page_tokens;
  prompt->plan.selection = {.chunk_tokens = static_cast<int>(w), .num_free_picks = 2};
  ASSERT_TRUE(scheduler.Admit(answer));
  int64_t most_beside = 0;
  const auto run = [&] {
    const std::vector<ScheduledTokens> step = scheduler.NextStep();
    const int tokens = TokensOf(step, prompt);
    const int64_t chunks = tokens == 0 ? 0 : prompt->ChunksCompleted(tokens);
    if (chunks > 0) most_beside = std::max<int64_t>(most_beside, tokens);
    scheduler.Commit(step);
    if (answer->num_pending() == 0) ++answer->num_known;
    scheduler.NoteStep({1, tokens, chunks}, 0.010 + 0.002 * tokens + 0.5 * chunks);
  };
  run();
  ASSERT_TRUE(scheduler.Admit(prompt));
  while (prompt->num_in_kv < w) run();
  most_beside = 0;
  for (int n = 0; n < 100; ++n) run();
  EXPECT_EQ(most_beside, 1);
  EXPECT_GT(prompt->num_in_kv, 280);
  scheduler.Remove(answer);
  scheduler.Remove(prompt);
}

// The token that completes a chunk is one of the rows that are rated.
TEST_F(SchedulerTest, RatedRowsAreBoundedWhereAChunkIsCompletedFirst) {
  Scheduler scheduler{
      {.step_tokens = 64, .prefill_share_tokens = 32, .score_rows = 31, .prefill_slowdown = 3},
      store_.get()};
  Sequence* answer = Add(1, 300);
  Sequence* prompt = Add(2000, 10);
  prompt->scores = true;
  const int64_t w = 2 * kGeometry.page_tokens;
  prompt->plan.selection = {.chunk_tokens = static_cast<int>(w), .num_free_picks = 2};
  ASSERT_TRUE(scheduler.Admit(answer));
  ASSERT_TRUE(scheduler.Admit(prompt));
  int completed_at_once = 0;
  for (int n = 0; n < 100; ++n) {
    const bool last_of_chunk = prompt->num_in_kv % w == w - 1;
    const std::vector<ScheduledTokens> step = scheduler.NextStep();
    const int tokens = TokensOf(step, prompt);
    EXPECT_LE(tokens, 31);
    if (last_of_chunk && tokens > 1) ++completed_at_once;
    const int64_t chunks = prompt->ChunksCompleted(tokens);
    scheduler.Commit(step);
    if (answer->num_pending() == 0) ++answer->num_known;
    scheduler.NoteStep({1, tokens, chunks}, 0.010 + 0.00024 * tokens + 0.002 * chunks);
  }
  EXPECT_GT(completed_at_once, 0);
  scheduler.Remove(answer);
  scheduler.Remove(prompt);
}

TEST_F(SchedulerTest, APrefillAloneMayHaveTheWholeStep) {
  Sequence* only = Admit(100);
  EXPECT_EQ(TokensOf(Step(), only), 64);
  EXPECT_EQ(TokensOf(Step(), only), 36);
  EXPECT_TRUE(only->decoding());
  EXPECT_EQ(TokensOf(Step(), only), 1);
}

TEST_F(SchedulerTest, DecodesComeFirstAndAPrefillBesideThemIsCapped) {
  Sequence* decoding = Admit(5);
  Step();
  Sequence* longer = Admit(1000);
  const auto step = Step();
  EXPECT_EQ(step[0].sequence, decoding);
  EXPECT_EQ(TokensOf(step, decoding), 1);
  EXPECT_EQ(TokensOf(step, longer), 32);
}

TEST_F(SchedulerTest, AShortPromptBesideALongOneIsDoneInItsFirstStep) {
  Sequence* longer = Admit(10000);
  Step();
  Sequence* shorter = Admit(20);
  const auto step = Step();
  EXPECT_EQ(TokensOf(step, shorter), 20);
  // As much as the short one has, and not the whole step, which it would wait for.
  EXPECT_EQ(TokensOf(step, longer), 20);
  EXPECT_TRUE(shorter->decoding());
}

TEST_F(SchedulerTest, ManyPromptsShareTheStepAndNoneStarves) {
  std::vector<Sequence*> all;
  for (int i = 0; i < 8; ++i) all.push_back(Admit(500));
  const auto step = Step();
  int total = 0;
  for (Sequence* sequence : all) {
    EXPECT_GE(TokensOf(step, sequence), 8);
    total += TokensOf(step, sequence);
  }
  EXPECT_EQ(total, 64);
}

TEST_F(SchedulerTest, TheManyPromptsOfOneClientDoNotHoldUpTheOneOfAnother) {
  TenantShare many;
  TenantShare one;
  std::vector<Sequence*> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(Admit(500 - i));
    all.back()->claim.tenant = &many;
  }
  Step();
  Sequence* only = Admit(30);
  only->claim.tenant = &one;
  const auto step = Step();
  EXPECT_EQ(TokensOf(step, only), 30);
  EXPECT_TRUE(only->decoding());
  // The one with the least left has its client's turn, the others have the rest.
  EXPECT_GT(TokensOf(step, all.back()), 20);
  int total = 30;
  for (Sequence* sequence : all) total += TokensOf(step, sequence);
  EXPECT_EQ(total, 60);  // as much as it has for the other client
}

TEST_F(SchedulerTest, AdmitsOnlyWithTheWholeMemoryReserved) {
  Sequence* big = Add(16 * 990, 0);
  EXPECT_TRUE(scheduler_.Admit(big));
  Sequence* next = Add(16 * 11, 0);
  EXPECT_FALSE(scheduler_.Admit(next));
  scheduler_.Remove(big);
  EXPECT_TRUE(scheduler_.Admit(next));
}

TEST_F(SchedulerTest, PausedSequencesAreLeftOut) {
  Sequence* sequence = Admit(10);
  sequence->paused = true;
  EXPECT_TRUE(Step().empty());
  sequence->paused = false;
  EXPECT_EQ(TokensOf(Step(), sequence), 10);
}

TEST_F(SchedulerTest, RemoveFreesEverything) {
  Sequence* sequence = Admit(200);
  Step();
  EXPECT_GT(store_->used_page_bytes(), 0);
  scheduler_.Remove(sequence);
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(SchedulerTest, ForkStartsAfterItsPrefixAndReservesOnlyItsOwnPart) {
  Sequence* document = Add(100, 0, /*generates=*/false);
  document->num_prompt = kUnbounded;
  ASSERT_TRUE(scheduler_.Admit(document));
  while (document->num_in_kv < 100) {
    Step();
  }
  scheduler_.Retire(document);
  Sequence* question = Add(5, 10);
  question->prefix = document;
  question->tokens_begin = 100;
  question->num_known = question->num_prompt = 105;
  question->max_tokens = 115;
  ASSERT_TRUE(scheduler_.Admit(question));
  EXPECT_EQ(question->num_in_kv, 100);
  EXPECT_EQ(question->reserved_bytes, 2 * 4096);  // pages 6 (copied) and 7
  EXPECT_EQ(TokensOf(Step(), question), 5);
}

}  // namespace
}  // namespace folio
