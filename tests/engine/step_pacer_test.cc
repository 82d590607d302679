#include "engine/sched/step_pacer.h"

#include <algorithm>

#include "engine/types/plan_parts.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

// A machine on which an answer and a token of a prompt take so long.
struct Machine {
  double step_seconds = 0.030;  // weights
  double answer_seconds = 0.001;
  double token_seconds = 0.008;

  double Alone(int64_t answers) const {
    return step_seconds + answer_seconds * static_cast<double>(answers);
  }
  double Seconds(int64_t answers, int64_t tokens) const {
    return Alone(answers) + token_seconds * static_cast<double>(tokens);
  }
};

class StepPacerTest : public testing::Test {
 protected:
  // Steps of so many answers beside a prompt without end. Returns the tokens of it that were read.
  int64_t Run(int64_t answers, int num_steps) {
    int64_t sum = 0;
    for (int n = 0; n < num_steps; ++n) {
      const int64_t tokens = std::min<int64_t>(512, pacer_.MostPromptTokens(answers));
      const double seconds = machine_.Seconds(answers, tokens);
      longest_ = std::max(longest_, seconds);
      pacer_.Note({answers, tokens}, seconds);
      sum += tokens;
    }
    return sum;
  }

  Machine machine_;
  StepPacer pacer_{3};
  double longest_ = 0;
};

TEST_F(StepPacerTest, WithoutAnswersOrABoundPromptsHaveAll) {
  EXPECT_EQ(pacer_.MostPromptTokens(0), kUnbounded);
  StepPacer none(0);
  none.Note({1, 0}, 0.03);
  EXPECT_EQ(none.MostPromptTokens(1), kUnbounded);
}

TEST_F(StepPacerTest, AnswersKeepTheirPaceAndPromptsHaveMostOfTheRest) {
  const int64_t tokens = Run(1, 1000);
  EXPECT_LE(longest_, 3 * machine_.Alone(1));
  // Of the two thirds of each step that are left, two fifths are margin.
  const double seconds = machine_.token_seconds * static_cast<double>(tokens);
  EXPECT_GT(seconds / (seconds + 1000 * machine_.Alone(1)), 0.5);
}

TEST_F(StepPacerTest, WhatPromptsAloneTakeIsKnownBeforeTheFirstAnswer) {
  for (int n = 0; n < 3; ++n) pacer_.Note({0, 128}, machine_.Seconds(0, 128));
  EXPECT_EQ(pacer_.MostPromptTokens(1), 0);  // the answers are measured
  pacer_.Note({1, 0}, machine_.Alone(1));
  EXPECT_GE(pacer_.MostPromptTokens(1), 4);
  Run(1, 100);
  EXPECT_LE(longest_, 3 * machine_.Alone(1));
}

TEST_F(StepPacerTest, AnswersThatCanBeWaitedForAreMeasuredAgain) {
  Run(1, 10);
  EXPECT_GT(pacer_.MostPromptTokens(2), 0);
  EXPECT_EQ(pacer_.MostPromptTokens(3), 0);  // many more than one
  Run(40, 10);
  EXPECT_EQ(pacer_.MostPromptTokens(5), 0);  // many fewer
  int alone = 0;
  for (int n = 0; n < 200; ++n) alone += Run(40, 1) == 0 ? 1 : 0;
  EXPECT_EQ(alone, 3);  // from time to time
}

// Deep in a text each token takes longer, and the machine is another program's now and then.
TEST_F(StepPacerTest, FollowsAMachineThatBecomesSlower) {
  Run(1, 100);
  machine_.token_seconds *= 1.5;
  Run(1, 1);
  longest_ = 0;
  Run(1, 100);
  EXPECT_LE(longest_, 3 * machine_.Alone(1));
}

TEST_F(StepPacerTest, AStallIsForgotten) {
  const int64_t before = Run(1, 64);
  pacer_.Note({1, 8}, 1.0 + machine_.Seconds(1, 8));
  EXPECT_LE(pacer_.MostPromptTokens(1), 1);
  pacer_.Note({1, 0}, 2.0);  // of the answers
  Run(1, 128);
  longest_ = 0;
  EXPECT_GE(Run(1, 64), before * 9 / 10);
  EXPECT_LE(longest_, 3 * machine_.Alone(1));
}

TEST_F(StepPacerTest, StepsThatNobodyNoticesAreNotCutShort) {
  machine_ = {.step_seconds = 0.0001, .answer_seconds = 0.00001, .token_seconds = 0.0002};
  Run(1, 10);
  EXPECT_EQ(pacer_.MostPromptTokens(1), 25);  // 5 ms
}

TEST_F(StepPacerTest, PromptsGetOnWhereTheyAreVerySlow) {
  machine_.token_seconds = 10;
  EXPECT_EQ(Run(1, 40), 39);
}

}  // namespace
}  // namespace folio
