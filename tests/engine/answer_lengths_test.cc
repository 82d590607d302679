#include "engine/sched/answer_lengths.h"

#include <gtest/gtest.h>

namespace folio {
namespace {

StopParams UpTo(int most) { return {.max_new_tokens = most}; }

TEST(AnswerLengths, ShortOnesAreExpectedBeforeAnyHasEnded) {
  const AnswerLengths lengths;
  EXPECT_EQ(lengths.Expected(UpTo(10)), 10);
  EXPECT_EQ(lengths.Expected(UpTo(4096)), 64);
  EXPECT_EQ(lengths.Expected({.max_new_tokens = 4096, .min_new_tokens = 200}), 200);
}

TEST(AnswerLengths, WhoWantsAllTokensHasThem) {
  AnswerLengths lengths;
  const StopParams all = {.max_new_tokens = 4096, .ignore_eos = true};
  EXPECT_EQ(lengths.Expected(all), 4096);
  StopParams may_end = all;
  may_end.stop_strings = {"."};
  EXPECT_EQ(lengths.Expected(may_end), 64);
  // That says nothing of those who do not.
  lengths.Note(all, 4096);
  EXPECT_EQ(lengths.Expected(UpTo(4096)), 64);
}

TEST(AnswerLengths, AnswersHaveThePartOfTheirTokensThatOthersHad) {
  AnswerLengths lengths;
  for (int n = 0; n < 200; ++n) lengths.Note(UpTo(400), 100);
  EXPECT_NEAR(lengths.Expected(UpTo(200)), 50, 1);
  EXPECT_NEAR(lengths.Expected(UpTo(400)), 100, 1);
}

// Those who ask for few tokens have all of them: that says nothing of one who asks for many.
TEST(AnswerLengths, NoneIsExpectedToBeLongerThanTheLongestOneLately) {
  AnswerLengths lengths;
  for (int n = 0; n < 200; ++n) lengths.Note(UpTo(16), 16);
  EXPECT_EQ(lengths.Expected(UpTo(16)), 16);
  EXPECT_EQ(lengths.Expected(UpTo(4096)), 16);
  lengths.Note(UpTo(4096), 900);
  EXPECT_NEAR(lengths.Expected(UpTo(4096)), 900, 1);
  // What was long ago is forgotten.
  for (int n = 0; n < 500; ++n) lengths.Note(UpTo(16), 16);
  EXPECT_NEAR(lengths.Expected(UpTo(4096)), 16, 1);
}

}  // namespace
}  // namespace folio
