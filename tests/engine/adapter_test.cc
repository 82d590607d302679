// LoRA adapters that are refused when a model is loaded, each with what is wrong and what to do;
// and what adapters are known by.
#include "engine/model/adapter.h"

#include <filesystem>
#include <functional>

#include "engine/runtime/attention_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/adapter_files.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTensor[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

class Adapters : public testing::Test {
 protected:
  Adapters() {
    WriteTinyModel({}, dir_.path() + "/model");
    config_ = *LoadModelConfig(dir_.path() + "/model");
  }
  // That of LoadModel for an adapter changed so.
  absl::Status Load(const std::function<void(AdapterFiles*)>& change) {
    AdapterFiles files(config_, 4, 1);
    change(&files);
    const std::string dir = dir_.path() + "/adapter";
    files.Write(dir);
    return LoadWith({{"house-style", dir}});
  }
  absl::Status LoadWith(const std::vector<AdapterSource>& adapters) {
    EngineOptions options;
    options.model_dir = dir_.path() + "/model";
    options.num_threads = 1;
    options.kv_bytes = int64_t{4} << 20;
    options.adapters = adapters;
    auto model = LoadModel(options, /*tokenizer_required=*/false);
    if (model.ok()) model_ = *std::move(model);
    return model.status();
  }
  absl::Status LoadKey(const std::string& key, const std::string& value) {
    return Load([&](AdapterFiles* files) { files->config[key] = value; });
  }

  ScratchDir dir_;
  ModelConfig config_;
  std::unique_ptr<LoadedModel> model_;
};

TEST_F(Adapters, AreLoadedAndCounted) {
  ASSERT_TRUE(LoadWith({}).ok());
  const std::string without = model_->info.memory_plan;
  ASSERT_TRUE(Load([](AdapterFiles*) {}).ok());
  ASSERT_EQ(model_->info.adapters.size(), 1u);
  const AdapterInfo& info = model_->info.adapters[0];
  EXPECT_EQ(info.name, "house-style");
  EXPECT_EQ(info.rank, 4);
  EXPECT_EQ(info.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  // A [8, 32] and B [128, 8] of both layers, the ranks of q and v one below the other.
  EXPECT_EQ(info.bytes, 2 * 4 * 8 * (32 + 128));
  EXPECT_THAT(model_->info.memory_plan, HasSubstr("+ adapters "));
  EXPECT_THAT(without, Not(HasSubstr("adapters")));
}

TEST_F(Adapters, ConfigsThatAreNotServedAreRefusedByKey) {
  const struct {
    const char* key;
    const char* value;
    const char* say;
  } kCases[] = {
      {"use_dora", "true", "merge the adapter into the model"},
      {"bias", "\"all\"", "train it with 'none'"},
      {"modules_to_save", "[\"lm_head\"]", "merge it into the model"},
      {"fan_in_fan_out", "true", "merge the adapter"},
      {"peft_type", "\"LOHA\"", "LORA"},
      {"init_lora_weights", "\"pissa\"", "path_initial_model_for_weight_conversion"},
      {"target_modules", "\".*proj\"", "give a list of names"},
      {"target_modules", "[\"(q|v)_proj\"]", "names of modules instead of patterns"},
      {"rank_pattern", "{\".*q_proj\": 4}", "names of modules instead of patterns"},
      {"layer_replication", "[[0, 1]]", "merge the adapter"},
      {"trainable_token_indices", "[1, 2]", "merge the adapter"},
      {"a_key_of_next_year", "3", "merge the adapter"},
  };
  for (const auto& [key, value, say] : kCases) {
    const absl::Status status = LoadKey(key, value);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << key << " " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("adapter 'house-style': "), HasSubstr(key), HasSubstr(say),
                      HasSubstr("adapter_config.json"), Not(HasSubstr("\n"))));
  }
  EXPECT_TRUE(LoadKey("a_key_of_next_year", "null").ok());
  EXPECT_TRUE(LoadKey("init_lora_weights", "\"gaussian\"").ok());
}

TEST_F(Adapters, ConfigsThatSayNothingSensibleAreRefused) {
  const struct {
    const char* key;
    const char* value;
    const char* say;
  } kCases[] = {
      {"r", "0", "\"r\" is 0"},
      {"r", "2000", "1024"},
      {"lora_alpha", "\"x\"", "lora_alpha"},
      {"lora_alpha", "null", "lora_alpha"},
      {"target_modules", "[]", "target_modules"},
      {"target_modules", "[\"q_proj\", \"lm_head\"]",
       "'lm_head'; of LlamaForCausalLM adapters "
       "change q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"},
      {"layers_to_transform", "[0, 7]", "has 7, the model has 2 layers"},
      {"alpha_pattern", "{\"q_proj\": 1, \"self_attn.q_proj\": 2}", "leave one of them"},
  };
  for (const auto& [key, value, say] : kCases) {
    const absl::Status status = LoadKey(key, value);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << key << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(say));
  }
}

TEST_F(Adapters, TensorsMustBeThoseOfTheConfigAndTheModel) {
  const absl::Status lacking = Load([](AdapterFiles* files) { files->tensors.erase(kTensor); });
  EXPECT_TRUE(absl::IsInvalidArgument(lacking));
  EXPECT_THAT(std::string(lacking.message()), AllOf(HasSubstr("lacks"), HasSubstr(kTensor)));

  const absl::Status extra = Load([](AdapterFiles* files) {
    files->tensors["base_model.model.lm_head.lora_A.weight"] = {{1, 1}, {0.5f}};
  });
  EXPECT_TRUE(absl::IsInvalidArgument(extra));
  EXPECT_THAT(std::string(extra.message()), HasSubstr("has base_model.model.lm_head.lora_A"));

  const absl::Status wide = Load([](AdapterFiles* files) {
    files->tensors[kTensor] = {{4, 16}, std::vector<float>(4 * 16)};
  });
  EXPECT_TRUE(absl::IsInvalidArgument(wide));
  EXPECT_THAT(std::string(wide.message()),
              AllOf(HasSubstr(kTensor), HasSubstr("[4, 16], must have [4, 32]")));

  const absl::Status of_other_rank = LoadKey("r", "5");
  EXPECT_THAT(std::string(of_other_rank.message()), HasSubstr("[4, 32], must have [5, 32]"));

  const absl::Status infinite =
      Load([](AdapterFiles* files) { files->tensors[kTensor].values[3] = INFINITY; });
  EXPECT_TRUE(absl::IsDataLoss(infinite));
  EXPECT_THAT(std::string(infinite.message()), HasSubstr("element 3 of"));
}

TEST_F(Adapters, FilesAndNamesThatCannotBeAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(LoadWith({{"a", dir_.path() + "/none"}})));
  AdapterFiles(config_, 2, 1).Write(dir_.path() + "/good");
  const AdapterSource good = {"a", dir_.path() + "/good"};
  EXPECT_TRUE(LoadWith({good}).ok());
  EXPECT_THAT(std::string(LoadWith({good, good}).message()), HasSubstr("is given twice"));
  for (const char* name : {"", "a b", "a@b", "../a", "a,b"}) {
    EXPECT_THAT(std::string(LoadWith({{name, good.dir}}).message()),
                HasSubstr("1 to 64 characters of [A-Za-z0-9_-]"))
        << name;
  }
  std::vector<AdapterSource> many;
  for (int n = 0; n <= kMaxAdapters; ++n) many.push_back({"a" + std::to_string(n), good.dir});
  EXPECT_THAT(std::string(LoadWith(many).message()), HasSubstr("at most 64 are served"));
  many.pop_back();
  EXPECT_TRUE(LoadWith(many).ok());
  std::filesystem::remove(good.dir + "/adapter_model.safetensors");
  const absl::Status lacking = LoadWith({good});
  EXPECT_TRUE(absl::IsNotFound(lacking));
  EXPECT_THAT(std::string(lacking.message()), HasSubstr("safe_serialization"));
}

// They stay fp32 beside a model of integers, which differs from that of the checkpoint a little.
TEST_F(Adapters, GoBesideWeightsOfIntegers) {
  const std::string dir = dir_.path() + "/adapter";
  AdapterFiles files(config_, 4, 1);
  for (auto& [name, tensor] : files.tensors) {
    for (float& value : tensor.values) value *= 0.25f;
  }
  files.Write(dir);
  const auto tokens = RandomTokens(40, config_.shape.vocab_size, 7);
  AttentionPlan plan;
  plan.stages.emplace_back();
  AttentionPlan adapted = plan;
  adapted.adapter = 0;
  const ModelOptions wide = {.adapters = {{"a", dir}}};
  const ModelOptions narrow = {.weight_dtype = "int8", .adapters = {{"a", dir}}};
  const auto model = LoadTestModel(dir_.path() + "/model", wide);
  const auto integers = LoadTestModel(dir_.path() + "/model", narrow);
  const auto expected = AllLogits(model.get(), adapted, tokens, {64});
  const float change = MaxAbsDifference(AllLogits(model.get(), plan, tokens, {64}), expected);
  EXPECT_LT(MaxAbsDifference(AllLogits(integers.get(), adapted, tokens, {64}), expected),
            0.2f * change);
}

TEST(AdapterNames, EndAPathBehindADot) {
  const std::string path = "model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(NamesModule("q_proj", path));
  EXPECT_TRUE(NamesModule("self_attn.q_proj", path));
  EXPECT_TRUE(NamesModule(path, path));
  EXPECT_FALSE(NamesModule("proj", path));
  EXPECT_FALSE(NamesModule("_proj", path));
  EXPECT_FALSE(NamesModule("k_proj", path));
}

// Stored caches are known by it: without an adapter it is what it has always been.
TEST(AdapterText, NamesTheAdapterAndItsContent) {
  AttentionSpec spec = {{"full", {}}, {"plain", {}}};
  EXPECT_EQ(AttentionText(spec), "full() plain()");
  spec.adapter = {"house-style", "00ff"};
  EXPECT_EQ(AttentionText(spec), "full() plain() adapter(house-style@00ff)");
  const auto parsed = ParseAttentionText(AttentionText(spec));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(*parsed, spec);
  EXPECT_FALSE(ParseAttentionText("full() plain() adapter(x)").has_value());
  EXPECT_FALSE(ParseAttentionText("full() plain() other(x@1)").has_value());
  EXPECT_FALSE(ParseAttentionText("full() plain() adapter(x@1) more()").has_value());
}

}  // namespace
}  // namespace folio::test
