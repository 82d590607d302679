#include "engine/tokenizer/gguf_tokenizer.h"

#include <fstream>

#include "engine/tokenizer/spm_processor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/gguf_builder.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// What a file of these values says of its tokenizer.
class TokenizerOf {
 public:
  explicit TokenizerOf(const GgufBuilder& builder, int vocab_size = 2000) {
    dir_.Write("x.gguf", builder.Build());
    const auto file = GgufFile::Open(dir_.Path("x.gguf"));
    EXPECT_TRUE(file.ok()) << file.status();
    const auto files = GgufTokenizerFiles(*file);
    tokenizer = files.ok() ? OpenTokenizerFiles("x.gguf", *files, vocab_size) : files.status();
  }

  void ExpectRefused(absl::StatusCode code, const std::string& part) const {
    EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(part));
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer;

 private:
  const ScratchDir dir_;
};

void ExpectCases(const Tokenizer& tokenizer, const std::string& path) {
  std::ifstream file(path);
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50u);
  for (const auto& test : cases) {
    const std::string text = test["text"];
    const auto ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, test["ids"].get<Ids>()) << text;
    EXPECT_EQ(*tokenizer.Decode(*ids), test["decoded"].get<std::string>());
  }
}

// The lists of a GGUF file for a tokenizer.json, as its converter writes them.
GgufBuilder FromJson(const std::string& path, const char* pre) {
  std::ifstream stream(path);
  const auto json = nlohmann::json::parse(stream);
  std::vector<std::string> tokens(2000);
  std::vector<int32_t> types(2000, 5);
  size_t size = 0;
  const auto put = [&](size_t id, const std::string& text, int type) {
    tokens.at(id) = text;
    types.at(id) = type;
    size = std::max(size, id + 1);
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(id, text, 1);
  for (const auto& token : json["added_tokens"]) {
    put(token["id"], token["content"], token["special"].get<bool>() ? 3 : 4);
  }
  tokens.resize(size);
  types.resize(size);
  std::vector<std::string> merges;
  for (const auto& merge : json["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufBuilder builder;
  builder.Add("tokenizer.ggml.model", "gpt2")
      .Add("tokenizer.ggml.pre", pre)
      .Add("tokenizer.ggml.tokens", tokens)
      .Add("tokenizer.ggml.token_type", types)
      .Add("tokenizer.ggml.merges", merges);
  return builder;
}

struct BpeCase {
  const char* golden;
  const char* pre;
};
class GgufBpe : public testing::TestWithParam<BpeCase> {};

TEST_P(GgufBpe, GivesTheIdsOfTheTokenizersLibrary) {
  const std::string dir = GoldenDir() + "/bpe/" + GetParam().golden;
  const TokenizerOf from(FromJson(dir + "/tokenizer.json", GetParam().pre));
  ASSERT_TRUE(from.tokenizer.ok()) << from.tokenizer.status();
  ExpectCases(**from.tokenizer, dir + "/cases.json");
  EXPECT_EQ((*from.tokenizer)->space_cut(), Tokenizer::SpaceCut::kKeepsSpace);
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufBpe,
                         testing::Values(BpeCase{"gpt2", "gpt-2"}, BpeCase{"qwen2", "qwen2"},
                                         BpeCase{"llama3", "llama-bpe"}),
                         [](const auto& info) { return std::string(info.param.golden); });

TEST(GgufBpeEnds, TheFileDecides) {
  const auto from = [](const char* pre) {
    GgufBuilder builder = FromJson(GoldenDir() + "/bpe/llama3/tokenizer.json", pre);
    builder.Add("tokenizer.ggml.bos_token_id", uint32_t{5})
        .Add("tokenizer.ggml.eos_token_id", uint32_t{6});
    return builder;
  };
  const auto ends = [](const GgufBuilder& builder) {
    const TokenizerOf made(builder);
    EXPECT_TRUE(made.tokenizer.ok()) << made.tokenizer.status();
    return std::pair((*made.tokenizer)->bos_id(), (*made.tokenizer)->eos_id());
  };
  EXPECT_EQ(ends(from("llama-bpe")), std::pair(5, 6));
  EXPECT_EQ(ends(from("llama-bpe").Add("tokenizer.ggml.add_bos_token", false)), std::pair(-1, 6));
  EXPECT_EQ(ends(from("qwen2")), std::pair(-1, 6));
  EXPECT_EQ(ends(from("qwen2").Add("tokenizer.ggml.add_bos_token", true)), std::pair(5, 6));
}

// The pieces of a SentencePiece model that the cases were made with.
GgufBuilder FromSpm() {
  std::string error;
  const auto processor =
      SpmProcessor::Create(ReadAll(GoldenDir() + "/tokenizer/tokenizer.model"), &error);
  EXPECT_NE(processor, nullptr) << error;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (const Piece& piece : processor->pieces()) {
    tokens.push_back(piece.name);
    types.push_back(piece.kind == PieceKind::kUnknown   ? 2
                    : piece.kind == PieceKind::kControl ? 3
                    : piece.kind == PieceKind::kBytes   ? 6
                                                        : 1);
  }
  GgufBuilder builder;
  builder.Add("tokenizer.ggml.model", "llama")
      .Add("tokenizer.ggml.tokens", tokens)
      .Add("tokenizer.ggml.scores", processor->scores())
      .Add("tokenizer.ggml.token_type", types)
      .Add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(processor->traits().bos_id))
      .Add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(processor->traits().eos_id))
      .Add("tokenizer.ggml.remove_extra_whitespaces", processor->traits().removes_extra_spaces)
      .Add("tokenizer.ggml.add_space_prefix", processor->traits().adds_dummy_prefix);
  return builder;
}

TEST(GgufSpm, GivesTheIdsOfTheSentencePieceLibrary) {
  const TokenizerOf from(FromSpm());
  ASSERT_TRUE(from.tokenizer.ok()) << from.tokenizer.status();
  ExpectCases(**from.tokenizer, GoldenDir() + "/tokenizer/cases.json");
  EXPECT_EQ((*from.tokenizer)->bos_id(), 1);
  EXPECT_EQ((*from.tokenizer)->eos_id(), 2);
  const TokenizerOf without(FromSpm().Add("tokenizer.ggml.add_bos_token", false));
  EXPECT_EQ((*without.tokenizer)->bos_id(), -1);
  EXPECT_EQ((*without.tokenizer)->eos_id(), 2);
}

TEST(GgufTokenizer, WhatIsNotKnownIsRefusedByName) {
  using Code = absl::StatusCode;
  TokenizerOf(GgufBuilder())
      .ExpectRefused(Code::kUnimplemented, "\"tokenizer.ggml.model\" is \"\"");
  TokenizerOf(GgufBuilder().Add("tokenizer.ggml.model", "bert"))
      .ExpectRefused(Code::kUnimplemented, "is \"bert\"; known: llama and gpt2");
  TokenizerOf(FromJson(GoldenDir() + "/bpe/gpt2/tokenizer.json", "tekken"))
      .ExpectRefused(
          Code::kUnimplemented,
          "x.gguf: \"tokenizer.ggml.pre\" is \"tekken\"; known: gpt-2, qwen2, llama-bpe");
  TokenizerOf(FromSpm().Add("tokenizer.ggml.precompiled_charsmap", "x"))
      .ExpectRefused(Code::kUnimplemented, "precompiled_charsmap");
}

TEST(GgufTokenizer, ListsThatDoNotGoTogether) {
  using Code = absl::StatusCode;
  const auto llama = [] { return GgufBuilder().Add("tokenizer.ggml.model", "llama"); };
  TokenizerOf(llama()).ExpectRefused(Code::kInvalidArgument,
                                     "\"tokenizer.ggml.tokens\" is missing");
  const std::vector<std::string> tokens = {"<unk>", "a"};
  TokenizerOf(llama()
                  .Add("tokenizer.ggml.tokens", tokens)
                  .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2}))
      .ExpectRefused(Code::kInvalidArgument, "\"tokenizer.ggml.token_type\" has 1 entries");
  TokenizerOf(llama()
                  .Add("tokenizer.ggml.tokens", tokens)
                  .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 9}))
      .ExpectRefused(Code::kInvalidArgument, "\"tokenizer.ggml.token_type\" is 9");
  TokenizerOf(llama()
                  .Add("tokenizer.ggml.tokens", tokens)
                  .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 1})
                  .Add("tokenizer.ggml.scores", std::vector<float>{0}))
      .ExpectRefused(Code::kInvalidArgument, "\"tokenizer.ggml.scores\" has 1 entries");
  TokenizerOf(llama()
                  .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "\xff"})
                  .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 1}))
      .ExpectRefused(Code::kInvalidArgument, "expected a text of UTF-8");
  TokenizerOf(FromSpm().Add("tokenizer.ggml.eot_token_id", 1u), 100)
      .ExpectRefused(Code::kInvalidArgument, "vocab_size");
}

}  // namespace
}  // namespace folio
