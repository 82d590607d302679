// What the engine makes of its options.
#include "engine/runtime/loaded_model.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_tensors.h"
#include "engine/store/fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/failing_backend.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using ::testing::HasSubstr;

EngineOptions Options(int step_tokens, int prefill_share_tokens) {
  EngineOptions options;
  options.model_dir = "synthetic:tiny";
  options.num_threads = 1;
  options.kv_bytes = int64_t{1} << 24;
  options.step_tokens = step_tokens;
  options.prefill_share_tokens = prefill_share_tokens;
  return options;
}

TEST(StepSizes, OfTheDeviceWhereNoneAreGiven) {
  const auto model = LoadModel(Options(0, 0));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->scheduler.step_tokens, (*model)->backend->usual_step_rows());
  EXPECT_EQ((*model)->scheduler.prefill_share_tokens, (*model)->scheduler.step_tokens / 2);
}

TEST(StepSizes, AsGiven) {
  const auto model = LoadModel(Options(100, 0));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->scheduler.step_tokens, 100);
  EXPECT_EQ((*model)->scheduler.prefill_share_tokens, 50);
  EXPECT_LE((*model)->scheduler.score_rows, 100);
}

TEST(StepSizes, RefusedWithTheirName) {
  const auto share = LoadModel(Options(100, 101)).status();
  EXPECT_EQ(share.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(share.message().find("prefill_share_tokens is 101"), std::string::npos) << share;
  const auto steps = LoadModel(Options(15, 0)).status();
  EXPECT_EQ(steps.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(steps.message().find("step_tokens is 15"), std::string::npos) << steps;
  EngineOptions many = Options(32, 0);
  many.max_running_requests = 33;
  EXPECT_EQ(LoadModel(many).status().code(), absl::StatusCode::kInvalidArgument);
}

// The limit of kernels, said before anything is loaded.
TEST(PageTokens, AreBoundedByWhatEveryBackendHolds) {
  EngineOptions options = Options(0, 0);
  options.page_tokens = 256;
  EXPECT_TRUE(LoadModel(options).ok());
  for (const int page_tokens : {8, 24, 272, 512, 1024}) {
    options.page_tokens = page_tokens;
    const auto refused = LoadModel(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("must be a multiple of 16 in [16, 256]"), std::string::npos)
        << refused;
  }
}

// A chunk of LongHeads is a sixteenth of the trained length, in whole pages.
TEST(PageTokens, AreNoMoreThanADefaultChunkHas) {
  for (const auto& [trained_length, expected] : std::vector<std::pair<int, int>>{
           {1024, 16}, {1040, 64}, {2047, 64}, {2048, 128}, {8192, 128}}) {
    const ScratchDir dir;
    test::TinyShape shape;
    shape.trained_length = trained_length;
    test::WriteTinyModel(shape, dir.path());
    EngineOptions options = Options(0, 0);
    options.model_dir = dir.path();
    const auto model = LoadModel(options, false);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->info.page_tokens, expected) << trained_length;
  }
}

TEST(LoadModel, AnswersEndAtTheTokensOfEitherFile) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.path());
  std::ofstream(dir.path() + "/generation_config.json") << R"({"eos_token_id": [7, 2]})";
  EngineOptions options = Options(0, 0);
  options.model_dir = dir.path();
  auto model = LoadModel(options, false);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->info.eos_tokens, (std::vector<int32_t>{2, 7}));
  std::ofstream(dir.path() + "/generation_config.json") << R"({"eos_token_id": 64})";
  const absl::Status refused = LoadModel(options, false).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr(dir.path()));
}

// As transformers has it, which masks what lies behind the window.
TEST(LoadModel, TheWindowOfTheCheckpointIsThatOfTheDefaultAttention) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.path());
  auto config = nlohmann::json::parse(ReadAll(dir.path() + "/config.json"));
  EngineOptions options = Options(0, 0);
  options.model_dir = dir.path();
  const auto default_of = [&](int window) {
    config["architectures"] = {"MistralForCausalLM"};
    config["model_type"] = "mistral";
    config["sliding_window"] = window;
    std::ofstream(dir.path() + "/config.json") << config;
    const auto model = LoadModel(options, false);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->info.default_attention.strategy;
  };
  EXPECT_EQ(default_of(48), (StrategySpec{"sliding_window", {{"window", int64_t{48}}}}));
  EXPECT_NE(default_of(128).name, "sliding_window");  // the trained length: it hides nothing
}

// Where the bytes of a tensor lie in DIR/model.safetensors.
int64_t OffsetOf(const std::string& dir, const std::string& tensor) {
  const std::string bytes = ReadAll(dir + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  return static_cast<int64_t>(8 + header_bytes) + header[tensor]["data_offsets"][0].get<int64_t>();
}

void Overwrite(const std::string& dir, int64_t offset, float value) {
  std::fstream file(dir + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

absl::Status LoadStatus(const std::string& dir) {
  EngineOptions options = Options(0, 0);
  options.model_dir = dir;
  return LoadModel(options, false).status();
}

TEST(LoadModel, AWeightThatIsNotFiniteIsNamed) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.path());
  ASSERT_TRUE(LoadStatus(dir.path()).ok());
  for (const char* tensor : {"model.embed_tokens.weight", "model.layers.1.self_attn.v_proj.weight",
                             "model.layers.0.input_layernorm.weight", "lm_head.weight"}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const int64_t offset = OffsetOf(dir.path(), tensor) + 7 * 4;
      Overwrite(dir.path(), offset, bad);
      const absl::Status status = LoadStatus(dir.path());
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("tensor \"", tensor, "\": element 7 ")));
      Overwrite(dir.path(), offset, 1.0f);
    }
  }
  EXPECT_TRUE(LoadStatus(dir.path()).ok());
}

TEST(LoadModel, AFileThatIsCutAfterItWasOpenedIsSaid) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.path());
  const auto config = LoadModelConfig(dir.path());
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  std::filesystem::resize_file(dir.path() + "/model.safetensors", 4000);
  const auto backend = test::NewTestBackend();
  const absl::Status status =
      LoadWeights(*config, *checkpoint, WeightPrecision{}, backend.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors ends at byte 4000"));
}

// What identifies a model on disk is made of them.
TEST(LoadModel, AnObserverSeesEveryTensorAsItLiesInTheFile) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.path());
  const auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok());
  const auto fingerprint = [&] {
    const auto checkpoint = Checkpoint::Open(dir.path());
    EXPECT_TRUE(checkpoint.ok());
    TensorDigests digests;
    const auto backend = test::NewTestBackend();
    EXPECT_TRUE(LoadWeights(*config, *checkpoint, WeightPrecision{}, backend.get(),
                            [&](const std::string& name, const TensorView& tensor) {
                              digests.Add(name, tensor);
                            })
                    .ok());
    EXPECT_EQ(digests.num_tensors(), static_cast<int64_t>(ModelTensors(*config).size()));
    return ModelContent{"", {}, digests, 16, "fp32", "fp32"}.MakeFingerprint();
  };
  const Fingerprint before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  for (const TensorSpec& spec : ModelTensors(*config)) {
    const int64_t offset = OffsetOf(dir.path(), spec.name);
    std::fstream file(dir.path() + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    float value = 0;
    file.seekg(offset);
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    file.close();
    Overwrite(dir.path(), offset, value + 1);
    EXPECT_NE(fingerprint(), before) << spec.name;
    Overwrite(dir.path(), offset, value);
  }
  EXPECT_EQ(fingerprint(), before);
}

TEST(LoadModel, ABudgetThatNoMachineHasIsRefusedWithTheArithmetic) {
  EngineOptions options = Options(0, 0);
  options.kv_bytes = int64_t{1} << 50;
  const absl::Status status = LoadModel(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("KV pages 1048576.00 GiB"));
  EXPECT_THAT(status.message(), HasSubstr("lower --kv-bytes by"));
}

// Of the standard library, not of the plan.
TEST(LoadModel, WithoutMemoryItEndsWithAStatus) {
  const absl::Status status =
      LoadModel(Options(0, 0), true, std::make_unique<test::PoorBackend>(test::NewTestBackend()))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("no memory left while synthetic:tiny was loaded"));
}

}  // namespace
}  // namespace folio
