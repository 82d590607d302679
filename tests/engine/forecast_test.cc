#include "engine/sched/forecast.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/sched/step_rates.h"

namespace folio {
namespace {

constexpr double kNear = 1e-4;
constexpr double kFar = 1e6;

// Steps take 10 ms, 1 ms for each answer and 0.1 ms for each token of a prompt.
double Taken(int64_t answers, double work) {
  return 0.010 + 0.001 * static_cast<double>(answers) + 0.0001 * work;
}

StepLoad Load(int64_t answers, double work, double token_work = 1) {
  return {.answers = static_cast<double>(answers),
          .prompt_tokens = work / token_work,
          .prompt_work = work};
}

StepRates Known() {
  StepRates rates;
  for (int n = 0; n < 2000; ++n) {
    const int64_t answers = n % 7;
    const int work = n % 5 * 30;
    rates.Note(Load(answers, work, 1 + n % 3), Taken(answers, work));
  }
  return rates;
}

TEST(StepRates, TellTheWeightsFromAnswersAndPrompts) {
  const StepRates rates = Known();
  EXPECT_NEAR(rates.Seconds({}), 0.010, kNear);
  EXPECT_NEAR(rates.Seconds(Load(50, 0)), Taken(50, 0), 10 * kNear);
  EXPECT_NEAR(rates.Seconds(Load(3, 400)), Taken(3, 400), 10 * kNear);
}

TEST(StepRates, SayNothingBeforeEnoughStepsHaveRun) {
  StepRates rates;
  EXPECT_FALSE(rates.known());
  EXPECT_EQ(rates.Seconds(Load(1, 100)), 0);
  for (int n = 0; n < 20; ++n) rates.Note(Load(2, 0), 0.012);
  EXPECT_TRUE(rates.known());
  // Steps that are all alike do not say what a part of them takes, but what they take.
  EXPECT_NEAR(rates.Seconds(Load(2, 0)), 0.012, 1e-6);
}

TEST(StepRates, FollowAMachineThatBecomesSlower) {
  StepRates rates = Known();
  for (int n = 0; n < 2000; ++n) {
    rates.Note(Load(n % 7, n % 5 * 30), 2 * Taken(n % 7, n % 5 * 30));
  }
  EXPECT_NEAR(rates.Seconds(Load(3, 100)), 2 * Taken(3, 100), 10 * kNear);
}

// A machine on which steps with prompts, what tokens attend to and what answers attend to take time
// of their own: that of the shortest steps is as near as that of the longest.
TEST(StepRates, AreRightForShortStepsAndForLongOnes) {
  const auto taken = [](const StepLoad& load) {
    return 0.0002 + 0.0015 * load.prompts + 0.0001 * load.answers + 0.00002 * load.answer_work +
           0.00003 * load.prompt_tokens + 0.0003 * (load.prompt_work - load.prompt_tokens);
  };
  const std::vector<StepLoad> loads = {{1, 2, 0, 0, 0},
                                       {4, 60, 0, 0, 0},
                                       {0, 0, 32, 40, 2},
                                       {2, 20, 100, 150, 3},
                                       {0, 0, 512, 20'000, 1}};
  StepRates rates;
  // A long prompt, and now and then something short.
  for (size_t n = 0; n < 3000; ++n) {
    const StepLoad& load = n % 8 == 0 ? loads[n / 8 % 4] : loads[4];
    rates.Note(load, taken(load) * (n % 3 == 0 ? 1.05 : 0.975));
  }
  for (const StepLoad& load : loads) {
    EXPECT_NEAR(rates.Seconds(load) / taken(load), 1, 0.15)
        << load.answers << " answers, " << load.prompt_tokens << " tokens";
  }
}

// What takes the time of long texts is what their tokens attend to, not their number.
TEST(StepRates, KnowWhatTokensAttendToLately) {
  StepRates rates;
  EXPECT_EQ(rates.AsLately(1, 100).prompt_work, 100);
  const StepLoad load{.answers = 2, .answer_work = 30, .prompt_tokens = 128, .prompt_work = 5120};
  for (int n = 0; n < 200; ++n) {
    const double part = n % 2 == 0 ? 1 : 0.5;
    rates.Note({2, 30, part * load.prompt_tokens, part * load.prompt_work, 4 * part},
               0.001 + part * 0.05);
  }
  const StepLoad lately = rates.AsLately(2, 128);
  EXPECT_NEAR(lately.answer_work, 30, 1e-6);
  EXPECT_NEAR(lately.prompt_work, 5120, 1e-6);
  EXPECT_NEAR(lately.prompts, 4, 1e-6);
  EXPECT_EQ(rates.AsLately(2, 8).prompts, 1);
  EXPECT_EQ(rates.AsLately(2, 0).prompts, 0);
  EXPECT_NEAR(rates.Seconds(lately), 0.051, 0.002);
}

class ForecastTest : public testing::Test {
 protected:
  ForecastTest() {
    load_.rates = Known();
    load_.step_tokens = 100;
    load_.prefill_share_tokens = 50;
    load_.max_running_requests = 4;
    load_.free_bytes = 1000;
  }
  static LoadItem Item(uint64_t tenant, double prompt_tokens, double answer_tokens) {
    return {.tenant = tenant,
            .rank = prompt_tokens,
            .prompt_tokens = prompt_tokens,
            .answer_tokens = answer_tokens};
  }
  void AddRunning(uint64_t tenant, double prompt_tokens, double answer_tokens) {
    LoadItem item = Item(tenant, prompt_tokens, answer_tokens);
    item.runs = true;
    load_.items.push_back(item);
  }
  void AddWaiting(uint64_t tenant, double prompt_tokens, double answer_tokens) {
    load_.items.push_back(Item(tenant, prompt_tokens, answer_tokens));
  }
  Forecast Ask(const LoadItem& item) {
    return Predict(load_, item, kFar).value_or(Forecast{-1, -1});
  }

  WorkLoad load_;
  static constexpr uint64_t a_ = 1;
  static constexpr uint64_t b_ = 2;
};

TEST_F(ForecastTest, SaysNothingWithoutMeasurements) {
  load_.rates = {};
  EXPECT_FALSE(Predict(load_, Item(a_, 100, 1), kFar).has_value());
}

TEST_F(ForecastTest, AloneItTakesItsOwnPrompt) {
  const Forecast forecast = Ask(Item(a_, 500, 20));
  EXPECT_EQ(forecast.queue_seconds, 0);
  EXPECT_NEAR(forecast.first_token_seconds, 5 * Taken(0, 100), kNear * 5);
}

TEST_F(ForecastTest, AnswersTakeTokensAndTimeOfItsSteps) {
  for (int n = 0; n < 3; ++n) AddRunning(a_, 0, 1000);
  // 97 tokens beside them, of which one prompt has 50.
  EXPECT_NEAR(Ask(Item(b_, 500, 20)).first_token_seconds, 10 * Taken(3, 50), 10 * kNear);
}

TEST_F(ForecastTest, ItsTenantHasItsShareOfTheSteps) {
  AddRunning(a_, 100'000, 10);
  AddRunning(a_, 100'000, 10);
  // Half of the tokens are its own.
  EXPECT_NEAR(Ask(Item(b_, 500, 20)).first_token_seconds, 10 * Taken(0, 100), 10 * kNear);
  // A third of them.
  LoadItem light = Item(b_, 500, 20);
  light.weight = 0.5;
  EXPECT_NEAR(Ask(light).first_token_seconds, 15 * Taken(0, 100), Taken(0, 100));
}

// Its tenant has had more than its share: two steps of the other's.
TEST_F(ForecastTest, WhatItsTenantOwesComesBefore) {
  load_.prefill_share_tokens = 100;
  AddRunning(a_, 100'000, 10);
  const double even = Ask(Item(b_, 50, 20)).first_token_seconds;
  LoadItem item = Item(b_, 50, 20);
  item.deficit = -200;
  item.last_step = 0;  // the last one
  EXPECT_NEAR(Ask(item).first_token_seconds, even + 2 * Taken(0, 100), Taken(0, 100));
}

// The first tokens of a long prompt cost little: others have their share of the work, not of the
// tokens, and that is soon as much again.
TEST_F(ForecastTest, TokensOfALongPromptCostMoreAndMore) {
  LoadItem growing = Item(a_, 1000, 10);
  growing.SetWork(/*work=*/5000, /*next_token=*/1);
  EXPECT_DOUBLE_EQ(growing.work(), 5000);
  EXPECT_DOUBLE_EQ(growing.WorkOfNext(1000), 5000);
  LoadItem later = growing;
  later.TakeTokens(500);
  EXPECT_DOUBLE_EQ(growing.WorkOfNext(500) + later.work(), 5000);
  EXPECT_NEAR(later.next_token_work(), 5, 0.01);
  // Alone: its work and ten steps.
  EXPECT_NEAR(Ask(growing).first_token_seconds, 10 * Taken(0, 500), 10 * kNear);
  // As many tokens that are all alike are not soon as far.
  LoadItem even = growing;
  even.token_growth = 0;
  load_.items = {growing};
  load_.items.back().runs = true;
  const double beside_growing = Ask(Item(b_, 200, 10)).first_token_seconds;
  load_.items = {even};
  load_.items.back().runs = true;
  EXPECT_LT(beside_growing, Ask(Item(b_, 200, 10)).first_token_seconds);
}

TEST_F(ForecastTest, TheShortestPromptOfItsTenantComesFirst) {
  AddRunning(a_, 1000, 10);
  // 50 of its own, 50 of the longer one.
  EXPECT_NEAR(Ask(Item(a_, 500, 20)).first_token_seconds, 10 * Taken(0, 100), 10 * kNear);
  // Behind a shorter one that has what one prompt may have, it has the rest; then the answer of
  // that is beside it, and at last it is alone.
  EXPECT_NEAR(Ask(Item(a_, 2000, 20)).first_token_seconds,
              20 * Taken(0, 100) + 9 * Taken(1, 50) + 5 * Taken(0, 100) + Taken(0, 50), 10 * kNear);
}

// What it asks for, and as much for the other.
TEST_F(ForecastTest, ItsStepIsNoLongerThanItNeeds) {
  AddRunning(a_, 100'000, 10);
  EXPECT_NEAR(Ask(Item(b_, 20, 20)).first_token_seconds, Taken(0, 40), kNear);
}

TEST_F(ForecastTest, TheStepThatRunsComesFirst) {
  AddRunning(a_, 100'000, 10);
  AddRunning(b_, 100'000, 10);
  load_.in_step = true;
  load_.step_elapsed_seconds = 0.005;
  EXPECT_NEAR(Ask(Item(0, 20, 20)).first_token_seconds, Taken(0, 100) - 0.005 + Taken(0, 60),
              2 * kNear);
  load_.step_elapsed_seconds = 1;  // longer than was expected
  EXPECT_NEAR(Ask(Item(0, 20, 20)).first_token_seconds, Taken(0, 60), kNear);
}

// The scheduler measures what answers take alone, in a step of their own, when their number has
// changed much.
TEST_F(ForecastTest, AnswersAreMeasuredAloneBefore) {
  load_.pacer = StepPacer(/*slowdown=*/3);
  load_.pacer.Note({.prompt_tokens = 100}, 0.010);  // 0.1 ms for a token
  load_.pacer.Note({.num_answers = 1}, Taken(1, 0));
  AddRunning(b_, 0, 100);
  EXPECT_NEAR(Ask(Item(a_, 20, 1)).first_token_seconds, Taken(1, 20), 10 * kNear);
  AddRunning(b_, 0, 100);
  AddRunning(b_, 0, 100);
  EXPECT_NEAR(Ask(Item(a_, 20, 1)).first_token_seconds, Taken(3, 0) + Taken(3, 20), 10 * kNear);
  // Once it knows that, prompts have as much of all steps as they bear.
  load_.pacer.Note({.num_answers = 3}, Taken(3, 0));
  EXPECT_NEAR(Ask(Item(a_, 20, 1)).first_token_seconds, Taken(3, 20), 10 * kNear);
}

TEST_F(ForecastTest, ItWaitsForAPlaceUntilAnAnswerEnds) {
  for (int n = 0; n < 4; ++n) AddRunning(a_, 0, 100 + 10 * n);
  const Forecast forecast = Ask(Item(a_, 50, 20));
  EXPECT_NEAR(forecast.queue_seconds, 100 * Taken(4, 0), 100 * kNear);
  EXPECT_NEAR(forecast.first_token_seconds, 100 * Taken(4, 0) + Taken(3, 50), 200 * kNear);
}

TEST_F(ForecastTest, ItIsBehindThoseOfItsTenantThatWaitAndBeforeOthers) {
  for (int n = 0; n < 4; ++n) AddRunning(a_, 0, 100 * (n + 1));
  AddWaiting(a_, 10, 1000);
  AddWaiting(a_, 20, 1000);
  AddWaiting(a_, 30, 1000);
  // Of its own tenant it is the third, by its length.
  EXPECT_NEAR(Ask(Item(a_, 25, 10)).queue_seconds, 300 * Taken(4, 0), 0.1);
  // Another's has a place at once.
  EXPECT_EQ(Ask(Item(b_, 25, 10)).queue_seconds, 0);
}

TEST_F(ForecastTest, ItWaitsForRoomInTheCache) {
  AddRunning(a_, 0, 100);
  load_.items.back().needed_bytes = 600;
  load_.free_bytes = 400;
  LoadItem large = Item(b_, 50, 10);
  large.needed_bytes = 500;
  EXPECT_NEAR(Ask(large).queue_seconds, 100 * Taken(1, 0), 100 * kNear);
  large.needed_bytes = 400;
  EXPECT_EQ(Ask(large).queue_seconds, 0);
}

TEST_F(ForecastTest, NothingTakesLongerThanEverythingInARow) {
  for (int n = 0; n < 4; ++n) AddRunning(a_, 100 * n, 100);
  for (int n = 0; n < 20; ++n) AddWaiting(n % 2 == 0 ? a_ : b_, 300, 50);
  const LoadItem item = Item(a_, 5000, 10);
  EXPECT_GT(AtMost(load_, item), Ask(item).first_token_seconds);
  EXPECT_LT(AtMost(load_, item), 100);
  load_.rates = {};
  EXPECT_EQ(AtMost(load_, item), 0);
}

// A full queue of short questions with late deadlines is not simulated for each that comes.
TEST_F(ForecastTest, WhatAFullQueueTakesAtMostIsNotFarFromWhatItTakes) {
  load_.max_running_requests = 64;
  for (int n = 0; n < 64; ++n) AddRunning(a_, 0, 32);
  for (int n = 0; n < 256; ++n) AddWaiting(a_, 600, 32);
  const LoadItem item = Item(a_, 4096, 32);
  EXPECT_LT(AtMost(load_, item), 2 * Ask(item).first_token_seconds);
}

// Further away than steps are planned one by one: each that stands for many reads what all of them
// do, however short the prompts are.
TEST_F(ForecastTest, ManyShortPromptsAreReadInAsManyStepsAsTheyTake) {
  load_.max_running_requests = 64;
  for (int n = 0; n < 4000; ++n) AddWaiting(a_, 10, 1);
  const double steps = 4000 * 10 / 100.0 + 5;
  EXPECT_NEAR(Ask(Item(a_, 500, 10)).first_token_seconds, steps * Taken(0, 100),
              0.1 * steps * Taken(0, 100));
}

// Of a tenant half of what the machine can do comes, and goes on coming, at random times: it has at
// most half of each step, and none of some.
TEST_F(ForecastTest, WhatComesLaterTakesItsShare) {
  const LoadItem small = Item(a_, 250, 1);
  load_.flows.push_back({.item = small, .per_second = 2500 / 250.0, .count = 10});
  const double alone = 50 * Taken(0, 100);
  EXPECT_NEAR(Ask(Item(b_, 5000, 10)).first_token_seconds, 1.7 * alone, 0.3 * alone);
  // Who asks one after the other asks nothing meanwhile.
  EXPECT_NEAR(Ask(Item(a_, 5000, 10)).first_token_seconds, alone, 0.02 * alone);
  // Not so if some of what came lately did while it had others.
  load_.flows.back().together = 2;
  EXPECT_NEAR(Ask(Item(a_, 5000, 10)).first_token_seconds, 1.8 * alone, 0.4 * alone);
  load_.flows.back().together = 1;
  EXPECT_NEAR(Ask(Item(a_, 5000, 10)).first_token_seconds, alone, 0.02 * alone);
  // If it has something else here, it is likely to have more: that passes, as it is shorter.
  AddRunning(a_, 250, 1);
  EXPECT_NEAR(Ask(Item(a_, 5000, 10)).first_token_seconds, 1.8 * alone, 0.4 * alone);
}

// Each has a part of the steps for all of its work.
TEST_F(ForecastTest, AnswersAreOfTheirTenantsShare) {
  AddRunning(a_, 0, 1000);
  load_.items.back().answer_work = 30;
  load_.prefill_share_tokens = 100;
  AddRunning(a_, 100'000, 10);
  // Of 99 tokens beside it and its work of 30, b has half.
  EXPECT_NEAR(Ask(Item(b_, 500, 20)).first_token_seconds, 8 * Taken(1, 99), 0.002);
}

// What answers cost is no number of rounds: a prompt of theirs waits no longer than the answers
// run.
TEST_F(ForecastTest, HoweverMuchItsTenantOwes) {
  load_.max_running_requests = 8;
  AddRunning(a_, 0, 2000);
  load_.items.back().answer_work = 1e13;
  AddRunning(b_, 1'000'000, 5);
  LoadItem item = Item(a_, 20'000, 5);
  const Forecast owing = Ask(item);
  item.tenant = b_ + 1;
  EXPECT_GT(owing.first_token_seconds, Ask(item).first_token_seconds);
  EXPECT_LT(owing.first_token_seconds, kFar);
}

TEST_F(ForecastTest, LooksNoFurtherThanItIsAsked) {
  AddRunning(a_, 0, 1e6);
  load_.max_running_requests = 1;
  const auto forecast = Predict(load_, Item(a_, 50, 10), 3);
  EXPECT_EQ(forecast->queue_seconds, 3);
  EXPECT_EQ(forecast->first_token_seconds, 3);
}

}  // namespace
}  // namespace folio
