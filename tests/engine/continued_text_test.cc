// Tokens of a text that follows another one (TextStart::kContinued), against what the tokenizers
// and sentencepiece libraries give for "x\n" + text behind the tokens of "x\n".
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/letter_tokenizer.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Continued(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  EXPECT_TRUE(tokenizer.Append(text, nullptr, &tokens, TextStart::kContinued).ok());
  return tokens;
}

std::vector<std::string> NamesInside(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (const int32_t token : Continued(text, tokenizer))
    names.push_back(tokenizer.pieces()[token].name);
  return names;
}

// ▁ stands for a space; sentencepiece puts one before every text.
TEST(ContinuedText, HasNoSpaceThatTheTextHasNot) {
  const auto tokenizer =
      *SentencePieceTokenizer::Open(TestData("../models/folio-tiny/tokenizer.model"), 32000);
  EXPECT_THAT(NamesInside("the", *tokenizer), ElementsAre("t", "he"));
  EXPECT_THAT(NamesInside(" the", *tokenizer), ElementsAre("▁the"));
  EXPECT_THAT(NamesInside("pass key", *tokenizer), ElementsAre("p", "ass", "▁key"));
  EXPECT_THAT(NamesInside(" é", *tokenizer), ElementsAre("▁", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(NamesInside("\n", *tokenizer), ElementsAre("<0x0A>"));
}

// Byte-level vocabularies join a space with the word after it, and put none before a text.
TEST(ContinuedText, IsTheTextAloneWhereNothingIsPutBeforeIt) {
  for (const std::string kind : {"gpt2", "llama3", "neox", "qwen2"}) {
    const auto tokenizer = *OpenTokenizer(TestData("golden/bpe/" + kind), TokenizerConfig{}, 1000);
    for (const std::string text : {"the", " the", "a b", "12", "Zürich", " é", "\n"}) {
      EXPECT_EQ(Continued(text, *tokenizer), *tokenizer->Encode(text)) << kind << text;
    }
  }
}

TEST(ContinuedText, BadTextIsRefused) {
  std::vector<int32_t> tokens;
  EXPECT_EQ(LetterTokenizer(4).Append("a\xFF", nullptr, &tokens, TextStart::kContinued).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace folio::test
