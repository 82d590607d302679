#include "client/eval/filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/eval/token_counter.h"

namespace folio::eval {
namespace {

using ::testing::ElementsAre;

TEST(Filler, TextIsCutIntoSentences) {
  EXPECT_THAT(SplitSentences("One  two.\nThree\nfour! 1.5 is a number? ... End without stop"),
              ElementsAre("One two.", "Three four!", "1.5 is a number?", "End without stop"));
  EXPECT_THAT(SplitSentences(" \n "), ElementsAre());
}

TEST(Filler, SentencesAreMeasuredBehindAnotherOne) {
  // Two tokens at the beginning of a text, then one per letter.
  const TokenCounter count = [](const std::string& text) { return 2 + text.size(); };
  const auto filler = Filler::Create({"Aa.", "Bbbb."}, FillerStart::kBeginning, count, 1000);
  ASSERT_TRUE(filler.ok());
  // " Aa." adds 4, " Bbbb." adds 6.
  EXPECT_EQ(filler->at(0).num_tokens, 4);
  EXPECT_EQ(filler->at(1).num_tokens, 6);
  EXPECT_EQ(filler->at(2).text, "Aa.");
}

TEST(Filler, TakesNoMoreSentencesThanNeeded) {
  const TokenCounter count = [](const std::string& text) { return text.size(); };
  const auto filler =
      Filler::Create({"Aa.", "Bb.", "Cc.", "Dd."}, FillerStart::kAnywhere, count, 8);
  ASSERT_TRUE(filler.ok());
  EXPECT_EQ(filler->num_sentences(), 2);
  EXPECT_TRUE(
      absl::IsInvalidArgument(Filler::Create({}, FillerStart::kAnywhere, count, 8).status()));
}

TEST(TokenCounter, LongTextsAreCutAtSpaces) {
  EXPECT_THAT(SplitAtSpaces("aa bb cc", 5), ElementsAre("aa bb", " cc"));
  EXPECT_THAT(SplitAtSpaces("short", 5), ElementsAre("short"));
  EXPECT_THAT(SplitAtSpaces("abcdefgh", 4), ElementsAre("abcd", "efgh"));
  // Two characters of three bytes do not fit into four: none is cut in two.
  EXPECT_THAT(SplitAtSpaces("€€", 4), ElementsAre("€", "€"));
}

}  // namespace
}  // namespace folio::eval
