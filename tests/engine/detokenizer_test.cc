#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/utf8.h"
#include "gtest/gtest.h"
#include "tests/engine/spm_model_builder.h"

namespace folio {
namespace {

using Ids = std::vector<int32_t>;
using Start = IncrementalDetokenizer::Start;

// Ids: <unk> 0, <s> 1, </s> 2, the byte b is 3 + b, then the text pieces.
constexpr int32_t kFirstText = 3 + 256;
enum TextPiece : int32_t { kSpace = kFirstText, kTwoSpaces, kTheWord, kA, kSpaceInside };

SpmModelBuilder TestModel() {
  SpmModelBuilder builder;
  builder.AddBytePieces();
  return builder.AddMerge("▁").AddMerge("▁▁").AddMerge("▁the").AddMerge("é").AddMerge("a▁b");
}

std::unique_ptr<SentencePieceTokenizer> Make(const SpmModelBuilder& builder) {
  auto tokenizer = SentencePieceTokenizer::FromBytes("test", builder.Build(), 1000);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

int32_t Byte(int byte) { return 3 + byte; }

std::vector<std::string> Texts(const Tokenizer& tokenizer, const Ids& ids, Start start) {
  IncrementalDetokenizer detokenizer(tokenizer, start);
  std::vector<std::string> texts;
  for (const int32_t id : ids) texts.push_back(detokenizer.Add(id));
  texts.push_back(detokenizer.Flush());
  return texts;
}

std::string Joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(IncrementalDetokenizer, CollectsTheBytesOfACharacter) {
  const auto tokenizer = Make(TestModel());
  EXPECT_EQ(
      Texts(*tokenizer, {Byte(0xF0), Byte(0x9F), Byte(0x98), Byte(0x80), kA}, Start::kWholeText),
      (std::vector<std::string>{"", "", "", "😀", "é", ""}));
}

TEST(IncrementalDetokenizer, ReplacesBytesAsSoonAsTheyCannotComplete) {
  const auto tokenizer = Make(TestModel());
  // E2 82 is the start of a character; 41 ("A") is not its end.
  EXPECT_EQ(Texts(*tokenizer, {Byte(0xE2), Byte(0x82), Byte(0x41)}, Start::kWholeText),
            (std::vector<std::string>{"", "", "��A", ""}));
  EXPECT_EQ(Texts(*tokenizer, {Byte(0xFF), Byte(0xE2), kA}, Start::kWholeText),
            (std::vector<std::string>{"�", "", "�é", ""}));
  // A surrogate is recognised by its second byte.
  EXPECT_EQ(Texts(*tokenizer, {Byte(0xED), Byte(0xA0), Byte(0x80)}, Start::kWholeText),
            (std::vector<std::string>{"", "��", "�", ""}));
  EXPECT_EQ(Texts(*tokenizer, {Byte(0xF0), Byte(0x9F)}, Start::kWholeText),
            (std::vector<std::string>{"", "", "��"}));
}

TEST(IncrementalDetokenizer, ControlPiecesGiveNoText) {
  const auto tokenizer = Make(TestModel());
  EXPECT_EQ(Texts(*tokenizer, {1, kTheWord, 2}, Start::kWholeText),
            (std::vector<std::string>{"", "the", "", ""}));
}

TEST(IncrementalDetokenizer, ContinuationKeepsItsLeadingSpace) {
  const auto tokenizer = Make(TestModel());
  EXPECT_EQ(Joined(Texts(*tokenizer, {kTheWord, kTheWord}, Start::kContinuation)), " the the");
  EXPECT_EQ(Joined(Texts(*tokenizer, {kTheWord, kTheWord}, Start::kWholeText)), "the the");
}

TEST(IncrementalDetokenizer, AnIdOutsideTheVocabularyIsAReplacementCharacter) {
  const auto tokenizer = Make(TestModel());
  EXPECT_EQ(Texts(*tokenizer, {Byte(0xE2), 900, -5}, Start::kWholeText),
            (std::vector<std::string>{"", "��", "�", ""}));
}

TEST(IncrementalDetokenizer, EqualsDecodeForRandomTokens) {
  for (int variant = 0; variant < 4; ++variant) {
    SpmModelBuilder model = TestModel();
    model.add_dummy_prefix = variant % 2 == 0;
    model.remove_extra_whitespaces = variant / 2 == 1;
    const auto tokenizer = Make(model);
    std::mt19937 random(static_cast<uint32_t>(variant));
    for (int round = 0; round < 5000; ++round) {
      Ids ids;
      for (size_t count = random() % 12; ids.size() < count;) {
        switch (random() % 4) {
          case 0:
            ids.push_back(kFirstText + static_cast<int32_t>(random() % 5));
            break;
          case 1:
            ids.push_back(static_cast<int32_t>(random() % 3));
            break;
          case 2:
            ids.push_back(Byte(0xC0 + static_cast<int>(random() % 64)));
            break;
          default:
            ids.push_back(Byte(0x70 + static_cast<int>(random() % 80)));
            break;
        }
      }
      const auto decoded = tokenizer->Decode(ids);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      const std::vector<std::string> texts = Texts(*tokenizer, ids, Start::kWholeText);
      ASSERT_EQ(Joined(texts), *decoded) << "variant " << variant << " round " << round;
      for (const std::string& text : texts) ASSERT_TRUE(IsValidUtf8(text));
    }
  }
}

}  // namespace
}  // namespace folio
