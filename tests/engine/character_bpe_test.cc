// CharacterBpe against the SentencePiece library, whose tokens it must give.
#include "engine/tokenizer/character_bpe.h"

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/spm_processor.h"
#include "gtest/gtest.h"
#include "tests/engine/spm_model_builder.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

std::unique_ptr<SpmProcessor> Load(const std::string& model_bytes) {
  std::string error;
  auto processor = SpmProcessor::Create(model_bytes, &error);
  EXPECT_NE(processor, nullptr) << error;
  return processor;
}

Ids ByLibrary(const SpmProcessor& processor, std::string_view text) {
  Ids ids;
  std::string error;
  EXPECT_TRUE(processor.Encode(text, &ids, &error)) << error;
  return ids;
}

Ids Encode(const CharacterBpe& model, bool with_space, std::string_view text) {
  Ids ids;
  EXPECT_TRUE(model.Encode(text, with_space, nullptr, &ids).ok());
  return ids;
}

std::string Draw(const Strings& parts, size_t count, std::mt19937* random) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += parts[(*random)() % parts.size()];
  return text;
}

// Any character of UTF-8.
std::string AnyCharacter(std::mt19937* random) {
  constexpr uint32_t kEnds[] = {0x80, 0x800, 0x10000, 0x110000};
  uint32_t code = (*random)() % kEnds[(*random)() % 4];
  if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  std::string bytes;
  for (int i = 0; i < more; ++i, code >>= 6) {
    bytes.insert(bytes.begin(), static_cast<char>(0x80 | (code & 0x3F)));
  }
  constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  return static_cast<char>(kLeads[more] | code) + bytes;
}

// Texts of several alphabets, one of them any character at all.
std::vector<Strings> Alphabets(std::mt19937* random) {
  Strings any;
  for (int i = 0; i < 200; ++i) any.push_back(AnyCharacter(random));
  return {{"a", "b", "c", " "},
          {"a"},
          {" ", "  ", "a", "▁", "\n", "\t"},
          {"文", "字", "数", "据", "。"},
          {"😀", "👍", "🏽", "\u200D", "❤"},
          {"a", "é", "文", "😀", " ", "ab", "\xEF\xBF\xBD", std::string(1, '\0')},
          {"the ", "lord ", "said", "unto ", "them", ", ", ".\n", "7", "1984", "  "},
          any};
}

// Pieces over a few characters, many of the same score; some of the characters are no pieces.
SpmModelBuilder RandomModel(std::mt19937* random) {
  const Strings characters = {"a", "b", "c", "▁", "文", "😀", "é", " "};
  SpmModelBuilder builder;
  std::set<std::string> names;
  Strings parts = characters;
  const auto draw = [&](uint32_t below) { return (*random)() % below; };
  const uint32_t num_scores = draw(2) == 0 ? 3 : 1000;
  const auto add = [&](const std::string& name) {
    if (names.insert(name).second) builder.Add(name, -static_cast<float>(draw(num_scores)));
  };
  for (const std::string& character : characters) {
    if (draw(4) != 0) add(character);
  }
  const bool inner_spaces = draw(3) == 0;
  for (uint32_t i = 0; i < 40; ++i) {
    const std::string name = Draw(parts, 2, random);
    const size_t text = name.find_first_not_of("▁");
    if (!inner_spaces && text != std::string::npos && name.find("▁", text) != std::string::npos) {
      continue;
    }
    add(name);
    parts.push_back(name);
  }
  builder.add_dummy_prefix = draw(2) == 0;
  builder.remove_extra_whitespaces = draw(2) == 0;
  if (draw(2) == 0) builder.AddBytePieces();
  return builder;
}

const WindowMerger::Sizes kAllSizes[] = {{1, 1}, {3, 1}, {8, 2}, {}};

class CharacterBpeTest : public testing::Test {
 protected:
  // Random texts of each alphabet, up to 60 parts long.
  void ExpectTheLibrarysTokens(const std::string& model_bytes, int texts_per_alphabet) {
    const auto processor = Load(model_bytes);
    ASSERT_TRUE(processor->traits().is_plain_bpe);
    std::vector<std::unique_ptr<const CharacterBpe>> models;
    for (const auto& sizes : kAllSizes) models.push_back(CharacterBpe::Create(*processor, sizes));
    for (const Strings& alphabet : Alphabets(&random_)) {
      for (int i = 0; i < texts_per_alphabet; ++i) {
        const std::string text = Draw(alphabet, random_() % 60, &random_);
        const Ids expected = ByLibrary(*processor, text);
        for (const auto& model : models)
          ASSERT_EQ(Encode(*model, processor->traits().adds_dummy_prefix, text), expected) << text;
      }
    }
  }

  test::SaysTestSeed says_seed_;
  std::mt19937 random_{static_cast<uint32_t>(test::TestSeed()) + 1};
};

TEST_F(CharacterBpeTest, EqualsTheLibraryOnTheCommittedModels) {
  for (const char* path :
       {"golden/tokenizer/tokenizer.model", "../models/folio-tiny/tokenizer.model"}) {
    SCOPED_TRACE(path);
    ExpectTheLibrarysTokens(ReadAll(test::TestData(path)), 100);
  }
}

TEST_F(CharacterBpeTest, EqualsTheLibraryOnRandomModels) {
  for (int model = 0; model < 120; ++model) {
    SCOPED_TRACE(model);
    ExpectTheLibrarysTokens(RandomModel(&random_).Build(), 4);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CharacterBpeTest, EqualsTheLibraryOnLongWords) {
  const auto processor = Load(ReadAll(test::TestData("../models/folio-tiny/tokenizer.model")));
  const auto model = CharacterBpe::Create(*processor);
  for (const Strings& alphabet : Alphabets(&random_)) {
    Strings no_spaces;
    for (const std::string& part : alphabet) {
      if (part.find(' ') == std::string::npos) no_spaces.push_back(part);
    }
    const std::string text = Draw(no_spaces, 20'000, &random_);
    // No gtest comparison of the vectors: printing a difference would take minutes.
    EXPECT_TRUE(Encode(*model, processor->traits().adds_dummy_prefix, text) ==
                ByLibrary(*processor, text))
        << no_spaces.front();
  }
}

TEST_F(CharacterBpeTest, NoTokenStandsForMoreTextThanIsSaid) {
  int num_known = 0;
  for (int model = 0; model < 40; ++model) {
    const auto tokenizer =
        SentencePieceTokenizer::FromBytes("a model", RandomModel(&random_).Build(), 1000);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const size_t most = (*tokenizer)->max_bytes_per_token();
    if (most == 0) continue;
    ++num_known;
    for (const Strings& alphabet : Alphabets(&random_)) {
      const std::string text = Draw(alphabet, random_() % 60, &random_);
      ASSERT_GE((*tokenizer)->Encode(text)->size() * most, text.size()) << text;
    }
  }
  EXPECT_GT(num_known, 0);
}

TEST_F(CharacterBpeTest, LeavesOtherModelsToTheLibrary) {
  const auto small = [] { return SpmModelBuilder().AddMerge("▁").AddCharacters("ab"); };
  EXPECT_TRUE(Load(small().Build())->traits().is_plain_bpe);
  std::vector<SpmModelBuilder> models(8, small());
  models[0].model_type = SpmModelBuilder::kUnigram;
  models[1].escape_whitespaces = false;
  models[2].whitespace_as_suffix = true;
  models[3].Add("ab", 0, SpmModelBuilder::kUserDefined);
  models[4].Add("ab", 0, SpmModelBuilder::kUnused);
  models[5].Add("c", 0, SpmModelBuilder::kControl);  // "c" would become it
  models[6].Add("<s>", -9);                          // likewise
  models[7].Add("ab", std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < models.size(); ++i) {
    EXPECT_EQ(CharacterBpe::Create(*Load(models[i].Build())), nullptr) << i;
  }
}

TEST_F(CharacterBpeTest, AsksTheInterruptAndEndsEarly) {
  const auto processor = Load(ReadAll(test::TestData("../models/folio-tiny/tokenizer.model")));
  const auto model = CharacterBpe::Create(*processor);
  const std::string text(1 << 20, 'a');
  int asked = 0;
  Ids ids;
  const auto never = [&] {
    ++asked;
    return absl::OkStatus();
  };
  EXPECT_TRUE(model->Encode(text, true, never, &ids).ok());
  EXPECT_EQ(asked, (1 << 20) / (64 << 10));
  asked = 0;
  ids.clear();
  const auto third = [&] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("gone"); };
  EXPECT_EQ(model->Encode(text, true, third, &ids), absl::CancelledError("gone"));
  EXPECT_EQ(asked, 3);
}

// Memory in use, by the C library. 0 where a sanitizer has its own.
size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_F(CharacterBpeTest, NeedsFewBytesPerByteOfText) {
  const auto tokenizer =
      SentencePieceTokenizer::Open(test::TestData("../models/folio-tiny/tokenizer.model"), 100'000);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // Bytes are tokens, a little more than a power of two of them. The first text is one word, whose
  // tokens are known at its end only.
  const std::pair<const char*, size_t> limits[] = {{"a", 10}, {"文", 5}, {"😀", 5}};
  for (const auto& [character, bytes_per_byte] : limits) {
    std::string text;
    while (text.size() < (1 << 20) + 1000) text += character;
    size_t most = 0;
    const size_t before = AllocatedBytes();
    const auto measure = [&] {
      most = std::max(most, AllocatedBytes() - before);
      return absl::OkStatus();
    };
    const auto ids = (*tokenizer)->Encode(text, measure);
    ASSERT_TRUE(ids.ok() && measure().ok());
    EXPECT_GT(ids->size(), 1u << 20);
    EXPECT_LE(most, bytes_per_byte * text.size()) << character;
  }
}

}  // namespace
}  // namespace folio
