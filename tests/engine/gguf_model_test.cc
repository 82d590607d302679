// Small models that another program wrote as GGUF files (tests/reference/gguf_models.py).
#include <atomic>
#include <cmath>
#include <cstring>

#include "engine/model/gguf_checkpoint.h"
#include "engine/tools/pack_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/failing_backend.h"
#include "tests/engine/gguf_builder.h"
#include "tests/engine/golden_logits.h"
#include "tests/engine/packed_rows.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using test::TestData;
using testing::HasSubstr;

std::string ModelOf(const std::string& name) {
  return TestData("golden/gguf/" + name + "/model.gguf");
}

struct Case {
  const char* name;
  const char* architecture;
  const char* automatic;   // --weight-dtype auto
  const char* conversion;  // a part of it
  double limit;            // of the deviation of logits in these numbers
};
constexpr Case kCases[] = {
    {"f16", "LlamaForCausalLM", "bf16", "GGUF matrices of F16 (16), dequantised to bf16", 0.03},
    {"q8_0", "LlamaForCausalLM", "int8/32", "Q8_0 (16), layers kept as int8/32, lossless", 0.06},
    {"q4_0", "Qwen2ForCausalLM", "int4/32", "Q4_0 (7), Q8_0 (1), layers kept as int4/32, lossless",
     0.06},
    {"q4_k", "LlamaForCausalLM", "int4/32", "quantised again to the nearest int4/32", 0.3},
};

class GgufModel : public testing::TestWithParam<Case> {
 protected:
  std::string path_ = ModelOf(GetParam().name);
};

TEST_P(GgufModel, InFp32HasTheLogitsOfTheReference) {
  const auto model = test::LoadTestModel(path_, {.kv_dtype = "fp32", .weight_dtype = "fp32"});
  EXPECT_EQ(model->config.architecture, GetParam().architecture);
  EXPECT_EQ(model->info.weight_dtype, "fp32");
  EXPECT_LE(test::GoldenDifference(model.get(), path_), 1e-4f);
}

TEST_P(GgufModel, IsKeptInTheNumbersThatAreNearest) {
  const auto model = test::LoadTestModel(path_, {.kv_dtype = "fp32"});
  EXPECT_EQ(model->info.weight_dtype, GetParam().automatic);
  EXPECT_THAT(model->info.weight_conversion, HasSubstr(GetParam().conversion));
  const double deviation = test::GoldenDeviation(model.get(), path_);
  EXPECT_LE(deviation, GetParam().limit);
  EXPECT_GT(deviation, 1e-4);  // it was not fp32
}

TEST_P(GgufModel, PackedInADirectoryIsTheSame) {
  const ScratchDir dir;
  const auto given = test::LoadTestModel(path_, {.kv_dtype = "fp32", .weight_dtype = "int8"});
  const absl::Status packed =
      PackModel({.checkpoint_dir = path_, .weight_dtype = "int8"}, dir.Path("m"));
  ASSERT_TRUE(packed.ok()) << packed;
  const auto again = test::LoadTestModel(dir.Path("m"), {.kv_dtype = "fp32"});
  EXPECT_EQ(again->info.weight_dtype, given->info.weight_dtype);
  EXPECT_EQ(test::LogitsOfGolden(again.get(), path_), test::LogitsOfGolden(given.get(), path_));
  EXPECT_EQ(again->tokenizer->eos_id(), given->tokenizer->eos_id());
  EXPECT_EQ(*again->tokenizer->Encode("abc <tool>"), *given->tokenizer->Encode("abc <tool>"));
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufModel, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GgufCheckpoint, GivesTheNumbersOfTheDefinitionInTheOrderOfHuggingFace) {
  for (const char* name : {"q8_0", "q4_0"}) {
    const ModelConfig config = *LoadModelConfig(ModelOf(name));
    const auto checkpoint = GgufCheckpoint::Open(ModelOf(name), config);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto golden =
        SafetensorsFile::Open(GoldenDir() + "/gguf/" + name + "/golden.safetensors");
    int num_tensors = 0;
    for (const auto& [tensor, entry] : golden->entries()) {
      if (!tensor.starts_with("model.")) continue;
      ++num_tensors;
      const auto read = checkpoint->Tensor(tensor, entry.shape);
      ASSERT_TRUE(read.ok()) << read.status();
      const OwnedTensor expected = *golden->Tensor(tensor);
      EXPECT_EQ(std::memcmp(read->view.data, expected.view.data, expected.view.num_bytes()), 0)
          << name << " " << tensor;
      const WeightFormat nearest = checkpoint->CheckAllTensors(config)->nearest;
      const std::vector<float> kept = test::PackedAndRead(read->view, nearest);
      EXPECT_EQ(std::memcmp(kept.data(), expected.view.data, expected.view.num_bytes()), 0)
          << name << " " << tensor;
      // Rows that change places take their scales along.
      ASSERT_EQ(read->view.scale_group, 32);
      const auto* values = static_cast<const float*>(read->view.data);
      const int64_t columns = entry.shape[1];
      for (int64_t i = 0; i < read->view.num_elements(); ++i) {
        const int64_t group = i / columns * (columns / 32) + i % columns / 32;
        const float integer = values[i] / read->view.scales[group];
        ASSERT_EQ(integer, std::nearbyint(integer)) << name << " " << tensor << " " << i;
      }
    }
    EXPECT_EQ(num_tensors, 3);
  }
}

TEST(GgufModel, HasTheTokenizerAndTheChatTemplateOfTheFile) {
  const auto llama = test::LoadTestModel(ModelOf("f16"));
  EXPECT_EQ(llama->tokenizer->bos_id(), 1);
  EXPECT_EQ(llama->info.eos_tokens, std::vector<int32_t>{2});
  EXPECT_EQ(*llama->tokenizer->Decode(*llama->tokenizer->Encode("abcd a")), "abcd a");
  EXPECT_EQ(llama->info.chat, nullptr);
  EXPECT_NE(llama->info.chat_note, "");  // its template is none that is known
  EXPECT_EQ(llama->info.model_name, "model.gguf");
  const auto qwen = test::LoadTestModel(ModelOf("q4_0"));
  EXPECT_EQ(qwen->tokenizer->bos_id(), -1);
  EXPECT_EQ(qwen->info.eos_tokens, std::vector<int32_t>{260});
  EXPECT_EQ(*qwen->tokenizer->Encode("ab<tool> <|end|>"),
            (std::vector<int32_t>{256, 261, ' ', '<', '|', 'e', 'n', 'd', '|', '>'}));
}

// As CUDA is.
class WithoutIntegers final : public test::FailingBackend {
 public:
  using FailingBackend::FailingBackend;
  bool packs_integers() const override { return false; }
};

TEST(GgufModel, IsBf16OnABackendWithoutIntegers) {
  EngineOptions options;
  options.model_dir = ModelOf("q4_0");
  options.kv_bytes = 1 << 24;
  const std::atomic<bool> lost{false};
  const auto model = LoadModel(options, /*tokenizer_required=*/true,
                               std::make_unique<WithoutIntegers>(test::NewTestBackend(), &lost));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->info.weight_dtype, "bf16");
  EXPECT_THAT((*model)->info.weight_conversion, HasSubstr("dequantised to bf16"));
}

TEST(GgufModel, StoresDocuments) {
  const ScratchDir dir;
  const auto model = test::LoadTestModel(ModelOf("q8_0"), {.kv_dir = dir.path()});
  EXPECT_NE(model->keeper, nullptr);
}

absl::Status ConfigOf(const GgufBuilder& builder) {
  const ScratchDir dir;
  dir.Write("x.gguf", builder.Build(1 << 12));
  return LoadModelConfig(dir.Path("x.gguf")).status();
}

GgufBuilder Llama(const char* leave_out = "") {
  GgufBuilder builder;
  builder.Add("general.architecture", "llama");
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, uint32_t>>{{"llama.block_count", 1},
                                                               {"llama.embedding_length", 32},
                                                               {"llama.feed_forward_length", 64},
                                                               {"llama.context_length", 128},
                                                               {"llama.attention.head_count", 4}}) {
    if (std::string_view(key) != leave_out) builder.Add(key, value);
  }
  return builder.Tensor("token_embd.weight", {32, 10}, 0, 0);
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(GgufConfig, KeysAreCheckedByName) {
  using Code = absl::StatusCode;
  EXPECT_TRUE(ConfigOf(Llama()).ok()) << ConfigOf(Llama());
  ExpectRefused(ConfigOf(Llama("llama.block_count")), Code::kInvalidArgument,
                "x.gguf: \"llama.block_count\" is missing");
  ExpectRefused(ConfigOf(GgufBuilder().Add("general.architecture", "phi3")), Code::kUnimplemented,
                "is \"phi3\"; known: llama and qwen2");
  ExpectRefused(ConfigOf(GgufBuilder()), Code::kUnimplemented, "\"general.architecture\" is \"\"");
  ExpectRefused(ConfigOf(Llama().Add("llama.expert_count", uint32_t{8})), Code::kUnimplemented,
                "\"llama.expert_count\" is 8");
  ExpectRefused(ConfigOf(Llama("llama.attention.head_count")
                             .Add("llama.attention.head_count", std::vector<int32_t>{4, 4})),
                Code::kInvalidArgument, "\"llama.attention.head_count\" is [4,4]");
  ExpectRefused(ConfigOf(Llama().Add("llama.rope.scaling.type", "longrope")), Code::kUnimplemented,
                "\"llama.rope.scaling.type\" is \"longrope\"");
  EXPECT_TRUE(
      ConfigOf(
          Llama().Add("llama.rope.scaling.type", "linear").Add("llama.rope.scaling.factor", 4.0f))
          .ok());
  ExpectRefused(ConfigOf(Llama().Tensor("rope_freqs.weight", {3}, 0, 0)), Code::kInvalidArgument,
                "short_factor");
  ExpectRefused(ConfigOf(Llama().Tensor("rope_freqs.weight", {8, 8}, 0, 0)), Code::kInvalidArgument,
                "\"rope_freqs.weight\" is no list");
}

TEST(GgufConfig, MistralHasItsWindow) {
  const ScratchDir dir;
  dir.Write("x.gguf", Llama().Add("llama.attention.sliding_window", uint32_t{8}).Build(1 << 12));
  const auto config = LoadModelConfig(dir.Path("x.gguf"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "MistralForCausalLM");
  EXPECT_EQ(config->sliding_window, 8);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->shape.vocab_size, 10);
}

TEST(GgufCheckpoint, WhatIsMissingOrOfAnotherKindIsNamed) {
  const ScratchDir dir;
  const auto check = [&](const GgufBuilder& builder) {
    dir.Write("x.gguf", builder.Build(1 << 12));
    const auto config = LoadModelConfig(dir.Path("x.gguf"));
    if (!config.ok()) return config.status();
    return GgufCheckpoint::Open(dir.Path("x.gguf"), *config)->CheckAllTensors(*config).status();
  };
  ExpectRefused(check(Llama()), absl::StatusCode::kNotFound,
                "no tensor \"blk.0.attn_norm.weight\", which its architecture asks for "
                "(\"model.layers.0.input_layernorm.weight\"");
  ExpectRefused(check(Llama().Tensor("blk.0.attn_norm.weight", {31}, 0, 0)),
                absl::StatusCode::kInvalidArgument, "has shape [31], its metadata asks for [32]");
  ExpectRefused(check(Llama().Tensor("blk.0.attn_norm.weight", {32}, 10, 0)),
                absl::StatusCode::kUnimplemented, "has the type Q2_K; known: F32");
}

}  // namespace
}  // namespace folio
