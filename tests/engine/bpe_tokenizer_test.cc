// Tokenizers of a tokenizer.json against what Hugging Face's tokenizers library wrote
// (tests/reference says how).

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

std::string PathOf(const std::string& kind) {
  return GoldenDir() + "/bpe/" + kind + "/tokenizer.json";
}

// With what lies beside it.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenIn(const std::string& dir) {
  auto config = ReadTokenizerConfig(dir);
  if (!config.ok()) return config.status();
  return OpenTokenizer(dir, *config, 1000);
}

std::unique_ptr<Tokenizer> Open(const std::string& kind) {
  auto tokenizer = OpenIn(GoldenDir() + "/bpe/" + kind);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Ids Stream(const Tokenizer& tokenizer, std::string_view text, size_t part) {
  StreamingTokenizer stream(tokenizer);
  Ids ids;
  for (size_t at = 0; at < text.size(); at += part) {
    EXPECT_TRUE(stream.Add(text.substr(at, part), &ids).ok());
  }
  EXPECT_TRUE(stream.Finish(&ids).ok());
  return ids;
}

class BpeKind : public testing::TestWithParam<std::string> {};

TEST_P(BpeKind, EqualsTheTokenizersLibrary) {
  const auto tokenizer = Open(GetParam());
  std::ifstream file(GoldenDir() + "/bpe/" + GetParam() + "/cases.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50u);
  for (const auto& test : cases) {
    const std::string text = test["text"];
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, test["ids"].get<Ids>()) << text;
    EXPECT_EQ(*tokenizer->Decode(*ids), test["decoded"].get<std::string>());
  }
}

// Composing characters makes a text shorter: Qwen2 does.
TEST_P(BpeKind, NoTokenStandsForMoreTextThanIsSaid) {
  const auto tokenizer = Open(GetParam());
  const size_t most = tokenizer->max_bytes_per_token();
  const bool normalises = GetParam() == "neox" || GetParam() == "qwen2";
  EXPECT_EQ(most == 0, normalises);
  if (most == 0) return;
  std::ifstream file(GoldenDir() + "/bpe/" + GetParam() + "/cases.json");
  for (const auto& test : nlohmann::json::parse(file)) {
    const std::string text = test["text"];
    EXPECT_GE(test["ids"].size() * most, text.size()) << text;
  }
}

// Cuts at spaces must not show, whatever surrounds them.
TEST_P(BpeKind, StreamsLikeEncode) {
  const auto tokenizer = Open(GetParam());
  const bool puts_space_in_front = GetParam() == "llama2" || GetParam() == "mistral_v3";
  EXPECT_EQ(tokenizer->space_cut(), puts_space_in_front ? Tokenizer::SpaceCut::kDropsSpace
                                                        : Tokenizer::SpaceCut::kKeepsSpace);
  std::ifstream file(GoldenDir() + "/bpe/" + GetParam() + "/cases.json");
  std::string text;
  while (text.size() < 60'000) {
    file.clear();
    file.seekg(0);
    for (const auto& test : nlohmann::json::parse(file)) {
      text += test["text"].get<std::string>() + (text.size() % 3 == 0 ? "" : " ");
    }
  }
  const Ids whole = *tokenizer->Encode(text);
  for (const size_t part : {1, 7, 5000, 100'000}) {
    EXPECT_TRUE(Stream(*tokenizer, text, part) == whole) << "parts of " << part;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, BpeKind,
                         testing::Values("gpt2", "neox", "qwen2", "llama3", "llama2", "mistral_v3",
                                         "gemma"),
                         [](const auto& info) { return info.param; });

TEST(BpeTokenizer, TakesItsBeginningFromTheTemplate) {
  EXPECT_EQ(Open("gpt2")->bos_id(), -1);
  const auto llama3 = Open("llama3");
  ASSERT_GE(llama3->bos_id(), 0);
  EXPECT_EQ(llama3->pieces()[llama3->bos_id()].name, "<|begin_of_text|>");
  EXPECT_EQ(llama3->pieces()[llama3->bos_id()].kind, PieceKind::kControl);
  EXPECT_EQ(*llama3->Decode({{llama3->bos_id()}}), "");
}

// What transformers makes of a tokenizer_config.json (tests/reference/special_tokens.py).
TEST(BpeTokenizer, BeginsAndEndsAsTransformersWithATokenizerConfig) {
  std::ifstream file(GoldenDir() + "/bpe/special_tokens.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 10u);
  for (const auto& test : cases) {
    const ScratchDir dir;
    std::filesystem::copy_file(PathOf(test["kind"]), dir.Path("tokenizer.json"));
    std::ofstream(dir.Path("tokenizer_config.json")) << test["tokenizer_config"];
    const auto tokenizer = OpenIn(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const Ids front = test["front"];
    EXPECT_EQ((*tokenizer)->bos_id(), front.empty() ? -1 : front[0]) << test;
    EXPECT_EQ((*tokenizer)->eos_id(), test["eos"].get<int32_t>()) << test;
  }
}

TEST(BpeTokenizer, AnEndThatTheVocabularyLacksIsNone) {
  const ScratchDir dir;
  std::filesystem::copy_file(PathOf("gpt2"), dir.Path("tokenizer.json"));
  std::ofstream(dir.Path("tokenizer_config.json")) << R"({"eos_token": "<end>"})";
  EXPECT_EQ((*OpenIn(dir.path()))->eos_id(), -1);
}

TEST(BpeTokenizer, ABadTokenizerConfigIsRefusedWithTheField) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "no valid JSON"},
      {"[]", "must be a JSON object"},
      {R"({"eos_token": 7})", "\"eos_token\" is 7"},
      {R"({"bos_token": {"text": "x"}})", "\"bos_token\""},
      {R"({"tokenizer_class": 1})", "\"tokenizer_class\""},
      {R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": "yes"})", "\"add_bos_token\""},
      {R"({"tokenizer_class": "LlamaTokenizer"})", "has no token \"<s>\""}};
  for (const auto& [text, message] : bad) {
    const ScratchDir dir;
    std::filesystem::copy_file(PathOf("gpt2"), dir.Path("tokenizer.json"));
    std::ofstream(dir.Path("tokenizer_config.json")) << text;
    const auto status = OpenIn(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("tokenizer"));
  }
}

TEST(BpeTokenizer, PartsOfACharacterComeOutWhole) {
  const auto tokenizer = Open("gpt2");
  const Ids ids = *tokenizer->Encode("\U00010348");
  ASSERT_GT(ids.size(), 1u);
  IncrementalDetokenizer detokenizer(*tokenizer, IncrementalDetokenizer::Start::kContinuation);
  std::string text;
  for (const int32_t id : ids) {
    const std::string more = detokenizer.Add(id);
    EXPECT_TRUE(more.empty() || more == "\U00010348");
    text += more;
  }
  EXPECT_EQ(text, "\U00010348");
}

TEST(BpeTokenizer, RefusesBadTextAndBadIds) {
  const auto tokenizer = Open("qwen2");
  EXPECT_THAT(tokenizer->Encode("ab\xFF").status().message(), HasSubstr("at byte 2"));
  EXPECT_THAT(tokenizer->Decode({{100'000}}).status().message(), HasSubstr("100000"));
}

TEST(BpeTokenizer, EndsInsideALongWordWhenTheInterruptSaysSo) {
  const auto tokenizer = Open("gpt2");
  int asked = 0;
  const auto interrupt = [&] {
    return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("the client has gone");
  };
  EXPECT_EQ(tokenizer->Encode(std::string(1'000'000, 'a'), interrupt).status(),
            absl::CancelledError("the client has gone"));
  EXPECT_EQ(asked, 3);
}

TEST(BpeTokenizer, AVeryLongWordTakesNoSquareTime) {
  const auto tokenizer = Open("gpt2");
  const std::string word(1'000'000, 'a');
  const auto ids = tokenizer->Encode(word);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*tokenizer->Decode(*ids), word);
}

TEST(LoadModel, TakesTokenizerJsonWhereThereIsNoTokenizerModel) {
  const ScratchDir dir;
  const std::string path = dir.Path("model");
  test::WriteTinyModel({.vocab = 700}, path);
  const auto without = test::LoadTestModel(path);
  EXPECT_EQ(without->tokenizer, nullptr);
  std::filesystem::copy_file(PathOf("llama3"), path + "/tokenizer.json");
  const auto model = test::LoadTestModel(path);
  ASSERT_NE(model->tokenizer, nullptr);
  EXPECT_EQ(*model->tokenizer->Encode("the house"), *Open("llama3")->Encode("the house"));
}

TEST(LoadModel, AnswersEndAtTheEndOfTokenizerConfig) {
  const ScratchDir dir;
  const std::string path = dir.Path("model");
  test::WriteTinyModel({.vocab = 700}, path);
  std::filesystem::copy_file(PathOf("qwen2"), path + "/tokenizer.json");
  std::ofstream(path + "/tokenizer_config.json") << R"({"eos_token": "<|im_end|>"})";
  const auto model = test::LoadTestModel(path);
  EXPECT_EQ(model->info.eos_tokens, (Ids{2, 602}));  // 2 is that of config.json
}

TEST(ByteLevel, IsTheTableOfGpt2) {
  EXPECT_EQ(ByteLevelBytes("Ġa"), " a");
  EXPECT_EQ(ByteLevelBytes("Ċ"), "\n");
  EXPECT_EQ(ByteLevelBytes("Ã©"), "é");
  EXPECT_EQ(ByteLevelBytes("Ń"), "\xAD");
  EXPECT_EQ(ByteLevelBytes(" "), std::nullopt);
  EXPECT_EQ(ByteLevelBytes("文"), std::nullopt);
}

struct BadJson {
  std::string from;
  std::string to;
  std::string message;
};
class BadTokenizer : public testing::TestWithParam<BadJson> {};

TEST_P(BadTokenizer, IsRefusedWithTheField) {
  std::stringstream text;
  text << std::ifstream(PathOf("qwen2")).rdbuf();
  const std::string changed = absl::StrReplaceAll(text.str(), {{GetParam().from, GetParam().to}});
  ASSERT_NE(changed, text.str());
  const auto tokenizer = TokenizerFromJson("dir/tokenizer.json", changed, {}, 1000);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr(GetParam().message));
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("dir/tokenizer.json"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizer,
    testing::Values(
        BadJson{R"("type":"BPE")", R"("type":"Unigram")", R"("model.type" is "Unigram")"},
        BadJson{R"("byte_fallback":false)", R"("byte_fallback":true)", "normalizer"},
        BadJson{R"("type":"NFC")", R"("type":"Lowercase")", R"(known: "NFC" or null)"},
        BadJson{R"("behavior":"Isolated")", R"("behavior":"Removed")", R"(known: "Isolated")"},
        BadJson{R"("add_prefix_space":false)", R"("add_prefix_space":true)", "add_prefix_space"},
        BadJson{R"((?i:'s)", R"((?i:'s()", "is wrong at byte"},
        BadJson{R"("merges":[)", R"("merges":[["a","nothing here"],)", "merge 0"},
        BadJson{R"("merges":[)", R"("merges":[3,)", "two tokens"},
        BadJson{R"("vocab":{)", R"("vocab":{"zz":1.5,)", "expected an integer"},
        BadJson{R"("vocab":{)", R"("vocab":{"zz":5000,)", "vocab_size is 1000"},
        BadJson{R"("!":)", R"("zzz":)", "no token for the byte 0x21"},
        BadJson{
            R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false)",
            R"("single_word":true,"special":false)", "added_tokens.single_word"}));

}  // namespace
}  // namespace folio
