#include "client/eval/passkey_task.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace folio::eval {
namespace {

// A token is a word.
absl::StatusOr<uint64_t> CountWords(const std::string& text) {
  std::istringstream stream(text);
  uint64_t num_words = 0;
  for (std::string word; stream >> word;) ++num_words;
  return num_words;
}

PasskeyTask GrassTask(uint64_t seed, int num_depths = 0) {
  auto filler =
      Filler::Create(GrassSentences(), FillerStart::kBeginning, &CountWords, 1000).value();
  return PasskeyTask(std::move(filler), &CountWords, seed, AllPasskeyRules().front(), num_depths);
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(PasskeyTask, PromptHasTheKeyTwiceAndFitsTheLength) {
  const PasskeyTask task = GrassTask(7);
  for (const uint64_t target : {64, 100, 101, 102, 103, 256}) {
    const auto trial = task.MakeTrial(target, 3, 10);
    ASSERT_TRUE(trial.ok()) << trial.status();
    EXPECT_EQ(trial->expected.size(), 5);
    EXPECT_EQ(CountOf(trial->context, trial->expected), 2);
    EXPECT_EQ(trial->question, "What is the pass key? The pass key is");
    const uint64_t counted = CountWords(trial->context + " " + trial->question).value() + 1;
    EXPECT_EQ(trial->prompt_tokens, counted);
    // Eight tokens are kept for the answer, and no sentence of four or five words would still fit.
    EXPECT_LE(counted + 8, target);
    EXPECT_GT(counted + 8 + 5, target);
  }
}

TEST(PasskeyTask, DepthIsSpreadEvenlyFromBeginningToEnd) {
  const PasskeyTask task = GrassTask(7);
  const auto first = task.MakeTrial(200, 0, 5);
  EXPECT_EQ(first->context.find("The pass key is " + first->expected), 0);
  EXPECT_EQ(first->depth, 0.0);
  const auto third = task.MakeTrial(200, 2, 5);
  EXPECT_EQ(third->depth, 0.5);
  const auto last = task.MakeTrial(200, 4, 5);
  EXPECT_EQ(last->depth, 1.0);
  const std::string end = last->expected + " is the pass key.";
  EXPECT_EQ(last->context.substr(last->context.size() - end.size()), end);
  // The needle has 12 words and the question 9; at the beginning it sees the whole text but the
  // BOS.
  EXPECT_EQ(last->needle_distance_tokens, 12 + 9);
  EXPECT_EQ(first->needle_distance_tokens, first->prompt_tokens - 1);
}

TEST(PasskeyTask, TrialsTakeTurnsOnAGridOfDepths) {
  const PasskeyTask task = GrassTask(7, 3);
  const std::vector<double> depths = {0, 0.5, 1, 0, 0.5, 1};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(task.MakeTrial(200, i, 6)->depth, depths[i]) << i;
}

TEST(PasskeyTask, NeedleStandsBetweenSentences) {
  const PasskeyTask task = GrassTask(7);
  for (int i = 0; i < 10; ++i) {
    const auto trial = task.MakeTrial(150, i, 10);
    const size_t needle = trial->context.find("The pass key is");
    if (needle == 0) continue;
    EXPECT_EQ(trial->context.substr(needle - 2, 2), ". ");
  }
}

TEST(PasskeyTask, SeedDecidesTheKeys) {
  const auto trial = GrassTask(7).MakeTrial(200, 1, 5);
  EXPECT_EQ(GrassTask(7).MakeTrial(200, 1, 5)->context, trial->context);
  EXPECT_NE(GrassTask(8).MakeTrial(200, 1, 5)->expected, trial->expected);
  EXPECT_NE(GrassTask(7).MakeTrial(200, 2, 5)->expected, trial->expected);
}

TEST(PasskeyTask, WrongEstimatesAreCorrectedByCounting) {
  // Every sentence looks one token cheaper alone than it is within the whole prompt.
  const TokenCounter counter = [](const std::string& text) -> absl::StatusOr<uint64_t> {
    const uint64_t num_words = CountWords(text).value();
    return num_words > 30 ? num_words + CountOf(text, ".") : num_words;
  };
  auto filler = Filler::Create(GrassSentences(), FillerStart::kBeginning, counter, 1000).value();
  const PasskeyTask task(std::move(filler), counter, 7);
  const auto trial = task.MakeTrial(200, 3, 10);
  ASSERT_TRUE(trial.ok()) << trial.status();
  EXPECT_LE(trial->prompt_tokens + 8, 200);
  EXPECT_GT(trial->prompt_tokens + 8, 180);
}

TEST(PasskeyTask, TooShortLengthIsRefused) {
  const PasskeyTask task = GrassTask(7);
  EXPECT_TRUE(absl::IsInvalidArgument(task.MakeTrial(20, 0, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(task.MakeTrial(5, 0, 1).status()));
}

TEST(PasskeyTask, TheFirstDigitsOfTheAnswerCount) {
  Trial trial;
  trial.expected = "12345";
  const PasskeyTask task = GrassTask(7);
  EXPECT_TRUE(task.IsCorrect(trial, " 12345. The"));
  EXPECT_TRUE(task.IsCorrect(trial, "The key is 12345"));
  EXPECT_FALSE(task.IsCorrect(trial, " 123456"));
  EXPECT_FALSE(task.IsCorrect(trial, " 1 12345"));
  EXPECT_FALSE(task.IsCorrect(trial, " none"));
  EXPECT_EQ(FirstDigits("a1b2"), "1");
}

}  // namespace
}  // namespace folio::eval
