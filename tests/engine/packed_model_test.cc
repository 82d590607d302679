// Models whose weights folio-make-model --quantise has packed answer as the checkpoint does that is
// quantised while it is loaded.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/runtime/model_weights.h"
#include "engine/tools/pack_model.h"
#include "gtest/gtest.h"
#include "tests/engine/stored_documents_fixture.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

// Small ones, so that every matrix of a test has several.
constexpr int64_t kPartBytes = 1000;

absl::Status Pack(const std::string& checkpoint, const std::string& to, const std::string& dtype,
                  int group = 0) {
  return PackModel({.checkpoint_dir = checkpoint,
                    .weight_dtype = dtype,
                    .weight_group = group,
                    .num_threads = 2,
                    .part_bytes = kPartBytes},
                   to);
}

AttentionPlan FullPlan() {
  AttentionPlan plan;
  plan.stages.emplace_back();
  return plan;
}

// Without what is free on the machine.
std::string PlannedSum(const LoadedModel& model) {
  const std::string& plan = model.info.memory_plan;
  return plan.substr(0, plan.find(" of "));
}

Fingerprint FingerprintOf(const EngineOptions& options) {
  const ModelConfig config = *LoadModelConfig(options.model_dir);
  const std::unique_ptr<Backend> backend = NewTestBackend();
  const auto weights = ModelWeights::Open(options, config, *backend);
  EXPECT_TRUE(weights.ok()) << weights.status();
  TensorDigests digests;
  EXPECT_TRUE(weights->Load(config, backend.get(), &digests).ok());
  return ModelContent{.config = ReadAll(options.model_dir + "/config.json"),
                      .tokenizer = {},
                      .tensors = digests,
                      .page_tokens = 16,
                      .kv_dtype = "fp32",
                      .weights = weights->precision().name()}
      .MakeFingerprint();
}

struct Case {
  std::string model;  // in tests/golden
  std::string dtype;
  int group = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " " << c.dtype << "/" << c.group;
}

// Tied and untied heads, biases, one and several files, every dtype and every order of q, k and v.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama/tied",
                            "llama/bias",
                            "llama/odd_sizes",
                            "llama/bf16",
                            "llama/fp16",
                            "llama/sharded",
                            "families/gptj",
                            "families/mistral",
                            "families/mpt",
                            "families/neox",
                            "families/neox_sequential_full_rotary",
                            "families/qwen2",
                            "families/qwen3",
                            "families/gemma3",
                            "families/phi3_partial_tied",
                            "families/mixtral",
                            "families/mixed_bf16",
                            "families/mixed_halves",
                            "coca/llama_norm",
                            "coca/neox_mean",
                            "../../models/folio-tiny"}) {
    for (const char* dtype : {"int8", "int4", "bf16"}) cases.push_back({model, dtype, 0});
    cases.push_back({model, "int4", 64});
  }
  return cases;
}

class PackedModel : public testing::TestWithParam<Case> {};

TEST_P(PackedModel, IsTheCheckpointQuantisedWhileItIsLoaded) {
  const Case& c = GetParam();
  const std::string checkpoint = TestData("golden/" + c.model);
  const ScratchDir dir;
  const absl::Status packed = Pack(checkpoint, dir.Path("packed"), c.dtype, c.group);
  ASSERT_TRUE(packed.ok()) << packed;
  const auto expected =
      LoadTestModel(checkpoint, {.weight_dtype = c.dtype, .weight_group = c.group});
  const auto model = LoadTestModel(dir.Path("packed"));

  EXPECT_EQ(model->info.weight_dtype, expected->info.weight_dtype);
  EXPECT_EQ(model->info.num_parameters, expected->info.num_parameters);
  EXPECT_EQ(model->info.weight_bytes, expected->info.weight_bytes);
  EXPECT_EQ(model->info.kv_dtype, expected->info.kv_dtype);
  EXPECT_EQ(PlannedSum(*model), PlannedSum(*expected));

  const auto tokens = RandomTokens(60, model->config.shape.vocab_size, 1);
  EXPECT_EQ(AllLogits(model.get(), FullPlan(), tokens, {40, 1, 7}),
            AllLogits(expected.get(), FullPlan(), tokens, {40, 1, 7}));
}

TEST_P(PackedModel, HasTheFingerprintOfItsCheckpoint) {
  const Case& c = GetParam();
  EngineOptions options;
  options.model_dir = TestData("golden/" + c.model);
  options.weight_dtype = c.dtype;
  options.weight_group = c.group;
  const ScratchDir dir;
  ASSERT_TRUE(Pack(options.model_dir, dir.Path("packed"), c.dtype, c.group).ok());
  const Fingerprint expected = FingerprintOf(options);
  options.model_dir = dir.Path("packed");
  options.weight_dtype = "auto";
  options.weight_group = 0;
  EXPECT_EQ(FingerprintOf(options), expected);
}

INSTANTIATE_TEST_SUITE_P(All, PackedModel, testing::ValuesIn(Cases()), [](const auto& info) {
  const std::string name =
      absl::StrCat(info.param.model, "_", info.param.dtype, "_", info.param.group);
  return absl::StrReplaceAll(name, {{"../", ""}, {"/", "_"}, {"-", "_"}});
});

// What was computed with the one is read with the other.
TEST_F(StoredDocuments, AreSharedByACheckpointAndItsPackedForm) {
  options_.weight_dtype = "int4";
  Restart();
  UploadAndSave("a", "long_heads");
  const auto before = Ask("a");
  ASSERT_TRUE(before->completed().has_value()) << before->status();
  const std::string packed = dir_.path() + "/packed";
  ASSERT_TRUE(Pack(options_.model_dir, packed, "int4").ok());
  options_.model_dir = packed;
  options_.weight_dtype = "auto";
  Restart();
  const auto after = Ask("a");
  ASSERT_TRUE(after->completed().has_value()) << after->status();
  EXPECT_EQ(after->completed()->usage.cached_tokens, kDocumentTokens);
  EXPECT_EQ(engine_->Stats().prefill_tokens, 5);  // the question
  EXPECT_EQ(after->text(), before->text());
}

}  // namespace
}  // namespace folio::test
