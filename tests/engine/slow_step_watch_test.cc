#include "engine/runtime/slow_step_watch.h"

#include <new>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

// A sequence with `in_kv` tokens in the cache of a prompt of `prompt`.
Sequence At(RequestId id, int64_t in_kv, int64_t prompt) {
  Sequence sequence;
  sequence.id = id;
  sequence.num_in_kv = in_kv;
  sequence.num_prompt = prompt;
  sequence.generates = id != 0;
  return sequence;
}

class SlowStepWatchTest : public testing::Test {
 protected:
  SlowStepWatch Watch(double bound) {
    return SlowStepWatch(bound, [this](const SlowStep& step) { told_.push_back(step); });
  }
  std::vector<SlowStep> told_;
};

TEST_F(SlowStepWatchTest, ToldIsWhatTookLongerThanTheBound) {
  SlowStepWatch watch = Watch(0.5);
  Sequence prompt = At(1, 0, 100);
  watch.Begin({{&prompt, 10}});
  watch.End(0.49);
  EXPECT_TRUE(told_.empty());
  watch.Begin({{&prompt, 10}});
  watch.End(0.5);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].seconds, 0.5);
}

TEST_F(SlowStepWatchTest, WithoutABoundNothingIsTold) {
  SlowStepWatch watch = Watch(0);
  Sequence prompt = At(1, 0, 100);
  watch.Begin({{&prompt, 10}});
  watch.End(1000);
  EXPECT_TRUE(told_.empty());
}

TEST_F(SlowStepWatchTest, AnswersAndPrefillsAreCountedApart) {
  SlowStepWatch watch = Watch(1);
  Sequence first = At(1, 110, 100);
  Sequence second = At(2, 55, 50);
  Sequence prompt = At(3, 40, 100);
  Sequence document = At(0, 1000, 2000);
  watch.Begin({{&first, 1}, {&second, 1}, {&prompt, 16}, {&document, 64}});
  watch.End(2);
  const SlowStep& step = told_.at(0);
  EXPECT_EQ(step.num_answers, 2);
  EXPECT_EQ(step.answer_context_tokens, 165);
  EXPECT_EQ(step.num_prefills, 2);
  EXPECT_EQ(step.prefill_tokens, 80);
  ASSERT_EQ(step.largest().size(), 2u);
  EXPECT_EQ(step.largest()[0].request, 0u);
  EXPECT_EQ(step.largest()[0].num_tokens, 64);
  EXPECT_EQ(step.largest()[0].num_before, 1000);
  EXPECT_EQ(step.largest()[1].request, 3u);
}

TEST_F(SlowStepWatchTest, OfManyPrefillsTheLargestAreNamed) {
  SlowStepWatch watch = Watch(1);
  std::vector<Sequence> prompts;
  for (RequestId id = 1; id <= 7; ++id) prompts.push_back(At(id, 0, 100));
  std::vector<ScheduledTokens> step;
  const int tokens[] = {3, 7, 1, 9, 5, 8, 2};
  for (size_t i = 0; i < prompts.size(); ++i) step.push_back({&prompts[i], tokens[i]});
  watch.Begin(step);
  watch.End(2);
  std::vector<RequestId> largest;
  for (const SlowStep::Prefill& prefill : told_.at(0).largest()) largest.push_back(prefill.request);
  EXPECT_EQ(largest, (std::vector<RequestId>{4, 6, 2, 5}));
  EXPECT_EQ(told_[0].num_prefills, 7);
  EXPECT_EQ(told_[0].prefill_tokens, 35);
}

TEST_F(SlowStepWatchTest, WhoeverIsToldMayFindNoMemory) {
  SlowStepWatch watch(1, [](const SlowStep&) { throw std::bad_alloc(); });
  Sequence prompt = At(1, 0, 100);
  watch.Begin({{&prompt, 10}});
  watch.End(2);
}

// Every step of a loop is slower than a nanosecond.
TEST(SlowSteps, TheLoopTellsOfThem) {
  const LetterTokenizer tokenizer(kVocab);
  FakeRunner runner;
  DocumentDirectory directory{{.max_documents = 1}};
  const auto store = *KvStore::Create(kGeometry, 100 * 4096, HostMemory());
  std::vector<SlowStep> told;
  EngineLoop loop({.scheduler = {64, 32},
                   .model = Model(),
                   .vocab_size = kVocab,
                   .slow_step_seconds = 1e-9,
                   .on_slow_step = [&told](const SlowStep& step) { told.push_back(step); }},
                  store.get(), &runner, &directory);
  GenerateSpec spec;
  spec.tokens.assign(20, 3);
  spec.attention = Attention("full");
  spec.stop.max_new_tokens = 3;
  TenantAccounts::Ticket ticket;
  LimitOf of;
  loop.accounts().Join(loop.accounts().Open(spec.tenant), {.requests = 1}, {}, &ticket, &of);
  loop.Submit(7, std::make_unique<Generation>(std::move(spec), std::make_shared<Recorder>(),
                                              tokenizer, kEos, std::move(ticket)));
  while (loop.RunStep()) {
  }
  ASSERT_EQ(told.size(), static_cast<size_t>(runner.steps));
  EXPECT_EQ(told.front().prefill_tokens, 20);
  EXPECT_EQ(told.front().largest()[0].request, 7u);
  EXPECT_EQ(told.back().num_answers, 1);
  EXPECT_EQ(told.back().prefill_tokens, 0);
}

}  // namespace
}  // namespace folio::test
