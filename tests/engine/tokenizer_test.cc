#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/byte_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "engine/tokenizer/utf8.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/spm_model_builder.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<SentencePieceTokenizer> GoldenTokenizer() {
  auto tokenizer = SentencePieceTokenizer::Open(GoldenDir() + "/tokenizer/tokenizer.model", 1024);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<SentencePieceTokenizer> Make(const SpmModelBuilder& builder) {
  auto tokenizer = SentencePieceTokenizer::FromBytes("test", builder.Build(), 1000);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

SpmModelBuilder SmallModel() {
  SpmModelBuilder builder;
  builder.AddMerge("▁").AddCharacters("abcde.").AddMerge("ab").AddMerge("▁a").AddMerge("▁ab");
  return builder.AddMerge("cd").AddMerge("▁cd").AddMerge("abcd");
}

// A text of words, runs of spaces, line ends and characters outside the vocabulary.
std::string RandomText(size_t num_bytes, uint32_t seed) {
  const std::vector<std::string> parts = {
      "ab", "abcd", "cd", "dcba", "e.", "a",  " ", " ",   " ",    " ",   "  ",       "   ",
      "\n", "\t ",  "▁",  " ▁",   "é",  "文", "😀", "the", "lord", "ing", "said unto"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < num_bytes) text += parts[random() % parts.size()];
  return text;
}

// Feeds `text` in random parts; most are small, some are large.
Ids StreamInParts(const Tokenizer& tokenizer, std::string_view text, uint32_t seed) {
  std::mt19937 random(seed);
  StreamingTokenizer stream(tokenizer);
  Ids ids;
  while (!text.empty()) {
    const size_t limit = random() % 8 == 0 ? 60'000 : 40;
    const std::string_view part = text.substr(0, random() % limit);
    const absl::Status status = stream.Add(part, &ids);
    EXPECT_TRUE(status.ok()) << status;
    text.remove_prefix(part.size());
  }
  EXPECT_TRUE(stream.Finish(&ids).ok());
  return ids;
}

void ExpectStreamsLikeEncode(const Tokenizer& tokenizer, const std::string& text,
                             std::initializer_list<uint32_t> seeds) {
  const auto whole = tokenizer.Encode(text);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const uint32_t seed : seeds) {
    // No gtest comparison of the vectors: printing a difference would take minutes.
    EXPECT_TRUE(StreamInParts(tokenizer, text, seed) == *whole) << "seed " << seed;
  }
}

TEST(Utf8, FollowsTheTableOfWellFormedBytes) {
  for (const char* good : {"", "a", "é", "▁", "😀", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF4\x8F\xBF\xBF", "abcdefghijklmnop é"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x96", "\xE2 ", "abcdefgh\xC3"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
  EXPECT_EQ(ValidUtf8Prefix("ab\xC3\xA9\xE2\x96"), 4u);
  EXPECT_EQ(IncompleteUtf8Tail("ab\xC3\xA9"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("a\xE2\x96"), 2u);
  EXPECT_EQ(IncompleteUtf8Tail("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(IncompleteUtf8Tail("\xE0\x80"), 0u);  // can never complete
  EXPECT_EQ(IncompleteUtf8Tail("\x80\x80\x80\x80"), 0u);
}

TEST(SentencePieceTokenizer, EqualsTheGoldenCases) {
  const auto tokenizer = GoldenTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const auto cases = nlohmann::json::parse(ReadAll(GoldenDir() + "/tokenizer/cases.json"), nullptr,
                                           /*allow_exceptions=*/false);
  ASSERT_TRUE(cases.is_array());
  ASSERT_FALSE(cases.empty());
  for (const auto& golden : cases) {
    const auto text = golden["text"].get<std::string>();
    const auto ids = golden["ids"].get<Ids>();
    const auto encoded = tokenizer->Encode(text);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, ids) << text;
    const auto decoded = tokenizer->Decode(ids);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, golden["decoded"].get<std::string>());
    EXPECT_EQ(StreamInParts(*tokenizer, text, 1), ids) << text;
  }
}

TEST(SentencePieceTokenizer, KnowsItsVocabulary) {
  const auto tokenizer = GoldenTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 1024);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->unk_id(), 0);
  EXPECT_EQ(tokenizer->pieces()[1].kind, PieceKind::kControl);
  EXPECT_EQ(tokenizer->pieces()[1].text, "");
  EXPECT_EQ(tokenizer->pieces()[12].kind, PieceKind::kBytes);
  EXPECT_EQ(tokenizer->pieces()[12].text, "\t");
  EXPECT_EQ(tokenizer->space_cut(), Tokenizer::SpaceCut::kDropsSpace);
  EXPECT_EQ(tokenizer->leading_space(), Tokenizer::LeadingSpace::kFirstDropped);
}

// Gemma has the marks of its turns as pieces that its library finds in any text.
TEST(SentencePieceTokenizer, UserDefinedPiecesThatAreSpecialAreNotFoundInTexts) {
  SpmModelBuilder builder;
  builder.add_dummy_prefix = false;
  builder.AddMerge("▁").AddCharacters("abc<>");
  builder.Add("<a>", 0, SpmModelBuilder::kUserDefined);
  builder.Add("bc", 0, SpmModelBuilder::kUserDefined);
  const int32_t special = 9;
  const auto plain = *SentencePieceTokenizer::FromBytes("test", builder.Build(), 100);
  EXPECT_EQ(*plain->Encode("a<a>b"), (Ids{4, special, 5}));
  TokenizerConfig config;
  config.special_tokens = {{"<a>", special, false, true}, {"<new>", 40}};
  config.eos_token = "<new>";
  const auto tokenizer = *SentencePieceTokenizer::FromBytes("test", builder.Build(), 100, config);
  EXPECT_EQ(*tokenizer->Encode("a<a>b"), (Ids{4, 7, 4, 8, 5}));
  EXPECT_EQ(*tokenizer->Encode("<a><a>bc"), (Ids{7, 4, 8, 7, 4, 8, 10}));
  EXPECT_EQ(*tokenizer->Decode({{4, special, 40, 5}}), "ab");
  EXPECT_EQ(tokenizer->eos_id(), 40);
  EXPECT_EQ(tokenizer->vocab_size(), 41);
  const std::vector<SpecialToken> expected = {
      {"<s>", 1}, {"</s>", 2}, {"<a>", special, false, true}, {"<new>", 40}};
  EXPECT_EQ(tokenizer->special_tokens(), expected);
}

// A configuration may name as special what merges would make of a text, and always names <unk>.
TEST(SentencePieceTokenizer, PiecesThatAreSpecialAreNotMergedInTexts) {
  SpmModelBuilder builder;
  builder.AddMerge("▁").AddCharacters("ab<>").AddMerge("<a").AddMerge("<a>").AddMerge("ab");
  const auto plain = *SentencePieceTokenizer::FromBytes("test", builder.Build(), 100);
  EXPECT_EQ(*plain->Encode("<a>ab"), (Ids{3, 9, 10}));
  TokenizerConfig config;
  config.special_tokens = {{"<unk>", 0}, {"<a>", 9}};
  const auto tokenizer = *SentencePieceTokenizer::FromBytes("test", builder.Build(), 100, config);
  EXPECT_EQ(*tokenizer->Encode("<a>ab"), (Ids{3, 6, 4, 7, 10}));
  EXPECT_EQ(tokenizer->pieces()[9].kind, PieceKind::kControl);
  EXPECT_EQ(tokenizer->pieces()[0].kind, PieceKind::kUnknown);
}

TEST(SentencePieceTokenizer, RefusesBadFiles) {
  const ScratchDir dir;
  const auto code = [](const std::string& path, int vocab) {
    return SentencePieceTokenizer::Open(path, vocab).status().code();
  };
  EXPECT_EQ(code(dir.Path("none"), 10), absl::StatusCode::kNotFound);
  const std::string good = SmallModel().Build();
  EXPECT_EQ(code(dir.Write("good", good), 16), absl::StatusCode::kOk);
  EXPECT_EQ(code(dir.Write("good", good), 15), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.Write("empty", ""), 100), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.Write("text", "{\"version\": 1}"), 100), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.Write("cut", good.substr(0, good.size() - 3)), 100),
            absl::StatusCode::kInvalidArgument);
}

TEST(SentencePieceTokenizer, RefusesBadTextAndBadIds) {
  const auto tokenizer = Make(SmallModel());
  const absl::Status status = tokenizer->Encode("ab\xFF").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.ToString().find("at byte 2"), std::string::npos) << status;
  EXPECT_FALSE(tokenizer->Decode(Ids{-1}).ok());
  EXPECT_FALSE(tokenizer->Decode(Ids{tokenizer->vocab_size()}).ok());
  EXPECT_EQ(*tokenizer->Decode(Ids{}), "");
  EXPECT_EQ(*tokenizer->Encode(""), Ids{});
}

TEST(StreamingTokenizer, EqualsEncodeForEveryKindOfModel) {
  std::vector<SpmModelBuilder> models;
  models.push_back(SmallModel());
  models.push_back(SmallModel());
  models.back().AddBytePieces();
  models.push_back(SmallModel());
  models.back().remove_extra_whitespaces = true;
  models.push_back(SmallModel());
  models.back().Add("<tool>", 0, SpmModelBuilder::kUserDefined);
  models.push_back(SmallModel());
  models.back().AddMerge("▁▁").AddMerge("▁▁▁▁").AddMerge("▁▁a");  // as Llama 2 has
  for (const SpmModelBuilder& model : models) {
    const auto tokenizer = Make(model);
    EXPECT_EQ(tokenizer->space_cut(), Tokenizer::SpaceCut::kDropsSpace);
    for (uint32_t seed = 0; seed < 8; ++seed) {
      ExpectStreamsLikeEncode(*tokenizer, RandomText(50'000, seed), {seed});
    }
  }
}

TEST(StreamingTokenizer, HoldsTheTextWhenACutWouldShow) {
  std::vector<SpmModelBuilder> models(8, SmallModel());
  models[0].model_type = SpmModelBuilder::kUnigram;
  models[1].add_dummy_prefix = false;
  models[2].escape_whitespaces = false;
  models[3].whitespace_as_suffix = true;
  models[4].AddMerge("▁▁").AddMerge("▁b▁");
  models[5].Add("▁x", 0, SpmModelBuilder::kUserDefined);
  models[6].Add("abc", -30, SpmModelBuilder::kUnused);
  models[7] = SpmModelBuilder().AddCharacters("abcde");  // a space is unknown
  for (size_t i = 0; i < models.size(); ++i) {
    const auto tokenizer = Make(models[i]);
    EXPECT_EQ(tokenizer->space_cut(), Tokenizer::SpaceCut::kNever) << i;
    ExpectStreamsLikeEncode(*tokenizer, RandomText(20'000, 1), {1});
  }
}

TEST(StreamingTokenizer, GivesTokensOutEarly) {
  const auto tokenizer = Make(SmallModel());
  StreamingTokenizer stream(*tokenizer);
  Ids ids;
  size_t most_held = 0;
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(stream.Add("ab cd. ", &ids).ok());
    most_held = std::max(most_held, stream.held_bytes());
  }
  EXPECT_LE(most_held, StreamingTokenizer::kMinSegmentBytes + 8);
  EXPECT_GT(ids.size(), 40'000u);
}

TEST(StreamingTokenizer, HandlesEdgeCases) {
  const auto tokenizer = Make(SmallModel());
  const std::string filler(StreamingTokenizer::kMinSegmentBytes - 2, 'a');
  const std::vector<std::string> ends = {
      "",   " ",   "  ",    " a",   " a ",   "a b",   "\n b", " \n", " ▁b", "▁ b",
      "▁b", " é ", "b  c ", " b c", " b  c", "  b c", "é b",  " 😀",  "😀 b", " b\xE2\x96\x82"};
  for (const std::string& end : ends) {
    for (const std::string& text : {end, filler + end, filler + end + filler + end}) {
      const auto whole = tokenizer->Encode(text);
      Ids by_bytes;
      StreamingTokenizer stream(*tokenizer);
      for (const char byte : text) {
        ASSERT_TRUE(stream.Add(std::string_view(&byte, 1), &by_bytes).ok());
      }
      ASSERT_TRUE(stream.Finish(&by_bytes).ok());
      EXPECT_EQ(by_bytes, *whole) << "end: '" << end << "'";
    }
  }
}

// Asked `limit` times, it fails.
Interrupt FailsWhenAsked(int limit, int* asked) {
  return [limit, asked] {
    return ++*asked < limit ? absl::OkStatus() : absl::CancelledError("the client has gone");
  };
}

TEST(Tokenizer, EndsWhenTheInterruptSaysSo) {
  const std::string text(1 << 20, 'a');
  const auto golden = GoldenTokenizer();
  const ByteTokenizer bytes(300);
  for (const Tokenizer* tokenizer :
       {static_cast<const Tokenizer*>(golden.get()), static_cast<const Tokenizer*>(&bytes)}) {
    int asked = 0;
    EXPECT_TRUE(tokenizer->Encode(text, FailsWhenAsked(1000, &asked)).ok());
    EXPECT_GE(asked, 1 + (1 << 20) / (64 << 10));
    asked = 0;
    EXPECT_EQ(tokenizer->Encode(text, FailsWhenAsked(3, &asked)).status(),
              absl::CancelledError("the client has gone"));
    EXPECT_EQ(asked, 3);
  }
}

TEST(StreamingTokenizer, EndsWhenTheInterruptSaysSo) {
  const auto tokenizer = Make(SmallModel());
  Ids ids;
  int asked = 0;
  StreamingTokenizer words(*tokenizer);
  std::string text;
  while (text.size() < 100'000) text += "ab cd ";
  EXPECT_EQ(words.Add(text, &ids, FailsWhenAsked(3, &asked)).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
  EXPECT_LT(ids.size(), 20'000u);

  asked = 0;
  StreamingTokenizer one_word(*tokenizer);
  EXPECT_TRUE(one_word.Add(std::string(1 << 20, 'a'), &ids, FailsWhenAsked(3, &asked)).ok());
  EXPECT_EQ(asked, 0);  // there is nothing to encode yet
  EXPECT_EQ(one_word.Finish(&ids, FailsWhenAsked(3, &asked)).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
}

TEST(SentencePieceTokenizer, SaysWhatMemoryEncodeNeeds) {
  EXPECT_LE(Make(SmallModel())->encode_bytes_per_byte(), 12u);
  SpmModelBuilder unigram = SmallModel();
  unigram.model_type = SpmModelBuilder::kUnigram;
  EXPECT_GE(Make(unigram)->encode_bytes_per_byte(), 240u);
}

TEST(StreamingTokenizer, NamesTheByteThatIsNotUtf8) {
  const auto tokenizer = Make(SmallModel());
  std::string text;
  while (text.size() < 10'000) text += "ab cd ";
  StreamingTokenizer stream(*tokenizer);
  Ids ids;
  ASSERT_TRUE(stream.Add(text, &ids).ok());
  ASSERT_TRUE(stream.Add("\xE2", &ids).ok());
  ASSERT_TRUE(stream.Add("\x96", &ids).ok());
  const absl::Status status = stream.Add("a", &ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.ToString().find("at byte " + std::to_string(text.size())), std::string::npos)
      << status;

  StreamingTokenizer cut(*tokenizer);
  ASSERT_TRUE(cut.Add("ab\xE2\x96", &ids).ok());
  const absl::Status end = cut.Finish(&ids);
  EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(end.ToString().find("begins at byte 2"), std::string::npos) << end;
}

// The start of the King James Version of Debian's bible-kjv, when it is installed.
std::string KingJamesText() {
  std::string text;
  FILE* pipe = popen("echo 'gen1:1-rev22:21' | bible -f -l 0 2>/dev/null", "r");
  if (pipe == nullptr) return text;
  char buffer[65536];
  for (size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, count);
  }
  pclose(pipe);
  text.resize(std::min<size_t>(text.size(), 1'500'000));
  return text;
}

TEST(StreamingTokenizer, EqualsEncodeOnABook) {
  const std::string text = KingJamesText();
  if (text.size() < 1'000'000) GTEST_SKIP() << "bible-kjv is not installed";
  const auto tokenizer = GoldenTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  ExpectStreamsLikeEncode(*tokenizer, text, {1, 2});
}

}  // namespace
}  // namespace folio
