// Tokens of a text inside another one, against what the tokenizers and sentencepiece libraries give
// for "x\n" + text behind the tokens of "x\n".
#include "engine/tokenizer/inside_text.h"

#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/letter_tokenizer.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using testing::ElementsAre;

std::vector<std::string> NamesInside(const std::string& text, const Tokenizer& tokenizer) {
  const auto tokens = EncodeInsideText(text, tokenizer);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  std::vector<std::string> names;
  for (const int32_t token : *tokens) names.push_back(tokenizer.pieces()[token].name);
  return names;
}

// ▁ stands for a space; sentencepiece puts one before every text.
TEST(InsideText, HasNoSpaceThatTheTextHasNot) {
  const auto tokenizer =
      *SentencePieceTokenizer::Open(TestData("../models/folio-tiny/tokenizer.model"), 32000);
  EXPECT_THAT(NamesInside("the", *tokenizer), ElementsAre("t", "he"));
  EXPECT_THAT(NamesInside(" the", *tokenizer), ElementsAre("▁the"));
  EXPECT_THAT(NamesInside("pass key", *tokenizer), ElementsAre("p", "ass", "▁key"));
  EXPECT_THAT(NamesInside(" é", *tokenizer), ElementsAre("▁", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(NamesInside("\n", *tokenizer), ElementsAre("<0x0A>"));
}

// Byte-level vocabularies join a space with the word after it, and put none before a text.
TEST(InsideText, IsTheTextAloneWhereNothingIsPutBeforeIt) {
  for (const std::string kind : {"gpt2", "llama3", "neox", "qwen2"}) {
    const auto tokenizer =
        *BpeTokenizer::Open(TestData("golden/bpe/" + kind + "/tokenizer.json"), 1000);
    for (const std::string text : {"the", " the", "a b", "12", "Zürich", " é", "\n"}) {
      EXPECT_EQ(*EncodeInsideText(text, *tokenizer), *tokenizer->Encode(text)) << kind << text;
    }
  }
}

TEST(InsideText, BadTextIsRefused) {
  EXPECT_EQ(EncodeInsideText("a\xFF", LetterTokenizer(4)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace folio::test
