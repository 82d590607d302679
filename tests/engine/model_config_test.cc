#include "engine/model/model_config.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/model/generation_config.h"
#include "gtest/gtest.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

constexpr char kGood[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 500000.0,
  "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": [2, 3],
  "torch_dtype": "bfloat16", "rope_scaling": null
})";

std::string With(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kGood, {{from, to}});
  EXPECT_NE(text, kGood) << from;
  return text;
}

absl::Status StatusOf(std::string_view text) { return ParseModelConfig(text).status(); }

TEST(ModelConfig, ReadsAllFields) {
  const auto config = ParseModelConfig(kGood);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->shape.num_layers, 2);
  EXPECT_EQ(config->shape.hidden_size, 64);
  EXPECT_EQ(config->shape.intermediate_size, 128);
  EXPECT_EQ(config->shape.num_heads, 4);
  EXPECT_EQ(config->shape.num_kv_heads, 2);
  EXPECT_EQ(config->shape.head_dim, 16);
  EXPECT_EQ(config->shape.vocab_size, 1000);
  EXPECT_EQ(config->shape.trained_length, 512);
  EXPECT_EQ(config->rope.base, 500000.0);
  EXPECT_EQ(config->shape.norm_eps, 1e-5);
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->torch_dtype, "bfloat16");
  EXPECT_EQ(config->bos_token_ids, std::vector<int32_t>{1});
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_FALSE(config->tie_word_embeddings || config->style.qkv_bias || config->synthetic);
}

TEST(ModelConfig, TakesTheDefaultsOfTheHuggingFaceClass) {
  const auto config = ParseModelConfig(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512, "head_dim": null, "eos_token_id": null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->shape.num_kv_heads, 4);
  EXPECT_EQ(config->rope.base, 10000.0);
  EXPECT_EQ(config->shape.norm_eps, 1e-6);
  EXPECT_EQ(config->bos_token_ids, std::vector<int32_t>{1});
  EXPECT_TRUE(config->eos_token_ids.empty());
}

TEST(ModelConfig, EndTokensOfGenerationConfigAreAdded) {
  auto config = ParseModelConfig(kGood);
  ASSERT_TRUE(AddGenerationConfig(R"({"eos_token_id": [3, 7]})", &*config).ok());
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 3, 7}));
  ASSERT_TRUE(AddGenerationConfig(R"({"eos_token_id": 9})", &*config).ok());
  ASSERT_TRUE(AddGenerationConfig(R"({"eos_token_id": null})", &*config).ok());
  ASSERT_TRUE(AddGenerationConfig("{}", &*config).ok());
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 3, 7, 9}));
  for (const char* bad : {"", "[]", R"({"eos_token_id": "x"})", R"({"eos_token_id": [1000]})"}) {
    EXPECT_EQ(AddGenerationConfig(bad, &*config).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(ModelConfig, SamplingIsThatOfGenerationConfig) {
  auto config = ParseModelConfig(kGood);
  EXPECT_EQ(config->sampling.temperature, 0.0f);
  EXPECT_EQ(config->sampling.top_k, 0);
  const auto read = [&](const char* text) {
    const absl::Status status = AddGenerationConfig(text, &*config);
    EXPECT_TRUE(status.ok()) << status;
    return config->sampling;
  };
  const SamplingParams all = read(R"({"do_sample": true, "temperature": 0.6, "top_k": 20,
      "top_p": 0.95, "repetition_penalty": 1.05, "transformers_version": "4.37.0"})");
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.95f);
  EXPECT_EQ(all.repetition_penalty, 1.05f);
  // The defaults of the class.
  const SamplingParams draws = read(R"({"do_sample": true, "top_p": null})");
  EXPECT_EQ(draws.temperature, 1.0f);
  EXPECT_EQ(draws.top_k, 50);
  EXPECT_EQ(draws.top_p, 1.0f);
  EXPECT_EQ(draws.repetition_penalty, 1.0f);
  EXPECT_EQ(read(R"({"temperature": 0.6})").temperature, 0.0f);
  EXPECT_EQ(read(R"({"do_sample": false, "temperature": 0.0})").temperature, 0.0f);
}

TEST(ModelConfig, SamplingOfGenerationConfigIsChecked) {
  auto config = ParseModelConfig(kGood);
  for (const auto& [text, message] :
       {std::pair{R"({"do_sample": 1})", "\"do_sample\" is 1, expected true or false"},
        {R"({"do_sample": true, "temperature": -1})", "\"temperature\" is -1"},
        {R"({"top_k": -1})", "\"top_k\" is -1, expected an integer from 0"},
        {R"({"top_k": 1.5})", "\"top_k\" is 1.5"},
        {R"({"top_p": 1.01})", "\"top_p\" is 1.01, expected a number above 0 and at most 1"},
        {R"({"top_p": "all"})", "\"top_p\" is \"all\""},
        {R"({"repetition_penalty": 0})", "\"repetition_penalty\" is 0"}}) {
    const absl::Status status = AddGenerationConfig(text, &*config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.ToString().find(message), std::string::npos) << status;
  }
}

TEST(ModelConfig, KnowsTheWindowThatACheckpointWasTrainedWith) {
  const auto window = [](const std::string& family, const std::string& fields) {
    const auto config = ParseModelConfig(absl::StrCat(R"({"architectures": [")", family,
                                                      R"("], "vocab_size": 100, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 8192)",
                                                      fields, "}"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->sliding_window : -1;
  };
  EXPECT_EQ(window("MistralForCausalLM", R"(, "sliding_window": 128)"), 128);
  EXPECT_EQ(window("MistralForCausalLM", R"(, "sliding_window": null)"), 0);
  EXPECT_EQ(window("MistralForCausalLM", R"(, "sliding_window": 8191)"), 8191);
  EXPECT_EQ(window("MistralForCausalLM", R"(, "sliding_window": 8192)"), 0);  // all of them
  EXPECT_EQ(window("MistralForCausalLM", ""), 4096);  // the default of the class
  EXPECT_EQ(window("Qwen2ForCausalLM", R"(, "sliding_window": 128, "use_sliding_window": false)"),
            0);
  EXPECT_EQ(window("LlamaForCausalLM", ""), 0);
  for (const char* family : {"Phi3ForCausalLM", "MixtralForCausalLM"}) {
    EXPECT_EQ(window(family, R"(, "sliding_window": 2047)"), 2047);
    EXPECT_EQ(window(family, ""), 0);
  }
}

TEST(ModelConfig, ReadsTheRopeParametersOfNewerFiles) {
  const auto config =
      ParseModelConfig(With("\"rope_theta\": 500000.0",
                            R"("rope_parameters": {"rope_type": "default", "rope_theta": 20000})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.base, 20000.0);
}

struct BadCase {
  const char* from;
  const char* to;
  const char* message;  // must be part of the error
};

TEST(ModelConfig, CocaQMarksACocaModel) {
  for (const auto& [name, form, kind] :
       {std::tuple{"raw", CocaQuery::kRaw, PositionKind::kCocaSlack},
        {"norm", CocaQuery::kNorm, PositionKind::kCocaStrict},
        {"mean", CocaQuery::kMean, PositionKind::kCocaStrict}}) {
    const auto config = ParseModelConfig(
        With("\"rope_scaling\": null", absl::StrCat("\"coca_q\": \"", name, "\"")));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->coca_query, form);
    EXPECT_EQ(config->positions, kind);
    EXPECT_TRUE(config->shape.paired_keys);
  }
}

TEST(ModelConfig, RotatesWhatTheClassOfTheFamilyDoes) {
  const auto neox = ParseModelConfig(R"({
    "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 100, "hidden_size": 128,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 512})");
  ASSERT_TRUE(neox.ok()) << neox.status();
  EXPECT_EQ(neox->rope.rotary_dim, 16);
  const auto gptj = ParseModelConfig(R"({
    "architectures": ["GPTJForCausalLM"], "vocab_size": 100, "n_embd": 256, "n_layer": 2,
    "n_head": 2, "n_positions": 512})");
  ASSERT_TRUE(gptj.ok()) << gptj.status();
  EXPECT_EQ(gptj->rope.rotary_dim, 64);
}

TEST(ModelConfig, TakesWhatTheClassOfTheFamilyHas) {
  const auto of = [](const std::string& family, const std::string& fields) {
    const auto config = ParseModelConfig(absl::StrCat(R"({"architectures": [")", family,
                                                      R"("], "vocab_size": 100, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 512)",
                                                      fields, "}"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : ModelConfig{};
  };
  EXPECT_EQ(of("Qwen3ForCausalLM", "").shape.head_dim, 128);
  EXPECT_EQ(of("Qwen3ForCausalLM", R"(, "head_dim": 32)").shape.head_dim, 32);
  EXPECT_TRUE(of("Qwen3ForCausalLM", "").style.head_norms);
  EXPECT_EQ(of("Qwen3ForCausalLM", R"(, "layer_types": ["full_attention"])").sliding_window, 0);
  EXPECT_EQ(of("Phi3ForCausalLM", "").shape.norm_eps, 1e-5);
  const ModelConfig long_phi3 = of("Phi3ForCausalLM", R"(, "original_max_position_embeddings": 128,
      "rope_scaling": {"type": "su", "short_factor": [1, 1, 1, 1, 1, 1, 1, 2],
                       "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]})");
  EXPECT_EQ(long_phi3.rope.original_length, 128);
  EXPECT_EQ(long_phi3.rope.scheme.name, "longrope");
  EXPECT_EQ(long_phi3.rope.long_factors.back(), 8);
  const ModelConfig mixtral = of("MixtralForCausalLM", "");
  EXPECT_EQ(mixtral.shape.num_experts, 8);
  EXPECT_EQ(mixtral.shape.experts_per_token, 2);
  EXPECT_EQ(mixtral.rope.base, 1e6);
  EXPECT_EQ(of("LlamaForCausalLM", R"(, "num_local_experts": 8)").shape.num_experts, 0);
}

TEST(ModelConfig, LayersOfGemmaSeeWindowsOfTheirOwn) {
  const auto of = [](const std::string& family, const std::string& fields) {
    const auto config = ParseModelConfig(absl::StrCat(R"({"architectures": [")", family,
                                                      R"("], "vocab_size": 100, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 512)",
                                                      fields, "}"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : ModelConfig{};
  };
  constexpr int64_t kAll = LayerViews::kAll;
  const ModelConfig second = of("Gemma2ForCausalLM", "");
  EXPECT_EQ(second.views.windows, (std::vector<int64_t>{4096, kAll, 4096, kAll}));
  EXPECT_EQ(second.views.score_cap, 50.0f);
  EXPECT_EQ(second.style.logit_cap, 30.0f);
  EXPECT_EQ(second.shape.head_dim, 256);
  EXPECT_EQ(second.views.score_scale, 1.0f);
  EXPECT_EQ(second.window_rope_base, 0);
  EXPECT_TRUE(second.tie_word_embeddings);
  EXPECT_EQ(second.positions, PositionKind::kByLayer);
  const ModelConfig third = of("Gemma3ForCausalLM", R"(, "sliding_window": 32,
      "sliding_window_pattern": 3, "query_pre_attn_scalar": 64, "rope_local_base_freq": 500)");
  EXPECT_EQ(third.views.windows, (std::vector<int64_t>{32, 32, kAll, 32}));
  EXPECT_EQ(third.views.score_cap, 0.0f);
  EXPECT_EQ(third.views.score_scale, 2.0f);
  EXPECT_EQ(third.rope.base, 1e6);
  EXPECT_EQ(third.window_rope_base, 500);
  const ModelConfig listed = of("Gemma2ForCausalLM", R"(, "attn_logit_softcapping": null,
      "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"])");
  EXPECT_EQ(listed.views.windows, (std::vector<int64_t>{kAll, kAll, 4096, kAll}));
  EXPECT_EQ(listed.views.score_cap, 0.0f);
}

class BadConfig : public testing::TestWithParam<BadCase> {};

TEST_P(BadConfig, IsRefusedWithTheFieldAndItsValue) {
  const absl::Status status = StatusOf(With(GetParam().from, GetParam().to));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.ToString().find(GetParam().message), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfig,
    testing::Values(
        BadCase{"\"vocab_size\": 1000,", "", "\"vocab_size\" is missing"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 1", "is 1, expected an integer from 2"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 1000001", "from 2 to 1000000"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 1000.0", "expected an integer"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": \"1000\"", "expected an integer"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 18446744073709551615", "\"vocab_size\""},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 4294968296", "\"vocab_size\""},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": -1000", "is -1000"},
        BadCase{"\"vocab_size\": 1000", "\"vocab_size\": 9, \"vocab_size\": 9", "given twice"},
        BadCase{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0", "from 1 to 512"},
        BadCase{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 513", "is 513"},
        BadCase{"\"hidden_size\": 64", "\"hidden_size\": 66", "a multiple of"},
        BadCase{"\"hidden_size\": 64", "\"hidden_size\": 36", "\"head_dim\" is 9"},
        BadCase{"\"hidden_size\": 64", "\"hidden_size\": 2048", "\"head_dim\" is 512"},
        BadCase{"\"hidden_size\": 64", "\"hidden_size\": 64, \"head_dim\": 15", "even"},
        BadCase{"\"hidden_size\": 64", "\"hidden_size\": 64, \"head_dim\": 258", "8 to 256"},
        BadCase{"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "a multiple of"},
        BadCase{"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 8", "from 1 to 4"},
        BadCase{"500000.0", "1.0", "above 1"}, BadCase{"500000.0", "1e400", "no valid JSON"},
        BadCase{"500000.0", "\"big\"", "\"rope_theta\" is \"big\""},
        BadCase{"1e-05", "0", "\"rms_norm_eps\" is 0"}, BadCase{"1e-05", "-1e-5", "above 0"},
        BadCase{"[2, 3]", "[2, 1000]", "\"eos_token_id\" is 1000"},
        BadCase{"[2, 3]", "[[2]]", "\"eos_token_id\""}, BadCase{"[2, 3]", "{}", "\"eos_token_id\""},
        BadCase{"\"architectures\"", "\"architecture\"", "\"architectures\" is missing"},
        BadCase{"[\"LlamaForCausalLM\"]", "[]", "a list of one string"},
        BadCase{"\"torch_dtype\": \"bfloat16\"", "\"tie_word_embeddings\": 1", "true or false"},
        BadCase{"\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": 16", "a string"},
        BadCase{"\"rope_scaling\": null", "\"rope_scaling\": 2", "an object or null"},
        BadCase{"\"rope_scaling\": null\n}", "\"rope_scaling\": null\n", "no valid JSON near byte"},
        BadCase{"\"rope_scaling\": null", R"("rope_scaling": {"factor": 4})", "no \"rope_type\""},
        BadCase{"\"rope_scaling\": null", R"("rope_scaling": {"type": "linear"})", "no \"factor\""},
        BadCase{"\"rope_scaling\": null", R"("rope_scaling": {"type": "linear", "factor": -2})",
                "above 0"},
        BadCase{"\"rope_scaling\": null", R"("coca_q": "slack")", "\"raw\", \"norm\" or \"mean\""},
        BadCase{"\"rope_scaling\": null", R"("coca_q": "raw", "partial_rotary_factor": 0.5)",
                "8 of the 16 elements of a head are rotated, expected all"},
        BadCase{"\"rope_scaling\": null", R"("layer_types": "full_attention")", "a list"},
        BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                R"("MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 5)",
                "\"num_experts_per_tok\" is 5, expected an integer from 1 to 4"},
        BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                R"("MixtralForCausalLM"], "num_local_experts": 257)", "from 1 to 256"},
        BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                R"("Gemma2ForCausalLM"], "layer_types": ["full_attention"])", "a list of 2"},
        BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                R"("Gemma2ForCausalLM"], "layer_types": ["full_attention", "linear"])",
                "\"layer_types\" is \"linear\""},
        BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                R"("Gemma2ForCausalLM"], "attn_logit_softcapping": 0)",
                "\"attn_logit_softcapping\" is 0, expected a number above 0"},
        BadCase{"bfloat16", "\xff", "no valid JSON near byte"}));

class UnknownConfig : public testing::TestWithParam<BadCase> {};

TEST_P(UnknownConfig, IsUnimplementedAndListsWhatIsKnown) {
  const absl::Status status = StatusOf(With(GetParam().from, GetParam().to));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_NE(status.ToString().find(GetParam().message), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    All, UnknownConfig,
    testing::Values(BadCase{"\"llama\"", "\"mamba\"",
                            "\"model_type\" is \"mamba\"; known with LlamaForCausalLM: llama"},
                    BadCase{"LlamaForCausalLM", "GPT2LMHeadModel", "known: LlamaForCausalLM"},
                    BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                            R"("MistralForCausalLM"], "coca_q": "raw")", "not with Mistral"},
                    BadCase{"LlamaForCausalLM", "Gemma3ForConditionalGeneration",
                            "which needs images; known of it: Gemma3ForCausalLM"},
                    BadCase{"\"LlamaForCausalLM\"], \"model_type\": \"llama\"",
                            R"("Gemma3ForCausalLM"], "use_bidirectional_attention": true)",
                            "\"use_bidirectional_attention\" is true"},
                    BadCase{"\"rope_scaling\": null",
                            R"("layer_types": ["full_attention", "sliding_attention"])",
                            "\"layer_types\" has \"sliding_attention\""},
                    BadCase{"\"silu\"", "\"gelu\"", "\"hidden_act\" is \"gelu\""},
                    BadCase{"\"rope_scaling\": null",
                            R"("rope_scaling": {"rope_type": "magic", "factor": 4})", "yarn"},
                    BadCase{"\"rope_scaling\": null", "\"mlp_bias\": true", "\"mlp_bias\" is true"},
                    BadCase{"\"rope_scaling\": null", R"("quantization_config": {"bits": 4})",
                            "quantization_config.quant_method"}));

TEST(ModelConfig, RefusesNonsense) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[1]"), std::string("{"),
        std::string("{} {}"), std::string(3, '\0'), deep}) {
    EXPECT_EQ(StatusOf(text).code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 20);
  }
}

TEST(ModelConfig, WhatIsNoModelIsToldWhatAModelIs) {
  const ScratchDir dir;
  dir.Write("model.bin", "GGML");
  const absl::Status file = LoadModelConfig(dir.path() + "/model.bin").status();
  EXPECT_EQ(file.code(), absl::StatusCode::kInvalidArgument) << file;
  EXPECT_NE(file.ToString().find("model.bin: is no GGUF file, and no directory"), std::string::npos)
      << file;
  const absl::Status none = LoadModelConfig(dir.path() + "/none").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound) << none;
  EXPECT_NE(none.ToString().find("no such directory or file; a model is a directory"),
            std::string::npos)
      << none;
}

TEST(ModelConfig, LoadNamesTheDirectory) {
  const ScratchDir dir;
  EXPECT_EQ(LoadModelConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
  dir.Write("config.json", With("\"vocab_size\": 1000", "\"vocab_size\": 0"));
  const absl::Status status = LoadModelConfig(dir.path()).status();
  EXPECT_NE(status.ToString().find(dir.path()), std::string::npos) << status;
  dir.Write("config.json", kGood);
  EXPECT_TRUE(LoadModelConfig(dir.path()).ok());
}

TEST(ModelConfig, ReadsEveryGoldenModel) {
  int num_models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDir() + "/llama")) {
    if (!entry.is_directory()) continue;
    const auto config = LoadModelConfig(entry.path().string());
    EXPECT_TRUE(config.ok()) << config.status();
    ++num_models;
  }
  EXPECT_GT(num_models, 0);
}

}  // namespace
}  // namespace folio
