#include "engine/model/checkpoint.h"

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/half.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors_writer.h"
#include "engine/tools/make_model.h"
#include "gtest/gtest.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

MakeModelOptions TinyOptions() {
  MakeModelOptions options;
  ModelShape& shape = options.config.shape;
  shape = {.num_layers = 2,
           .hidden_size = 32,
           .intermediate_size = 64,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_dim = 8,
           .vocab_size = 50,
           .trained_length = 128};
  options.config.bos_token_ids = {1};
  options.config.eos_token_ids = {2, 3};
  return options;
}

// A directory with a tiny model in DIR/m.
std::string MakeTiny(const ScratchDir& dir, const MakeModelOptions& options) {
  const absl::Status status = MakeRandomModel(options, dir.Path("m"));
  EXPECT_TRUE(status.ok()) << status;
  return dir.Path("m");
}

absl::Status CheckAll(const std::string& dir) {
  const auto config = LoadModelConfig(dir);
  if (!config.ok()) return config.status();
  const auto checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->CheckAllTensors(*config).status();
}

// Writes zero tensors of one dtype.
void WriteZeros(const std::string& path, DType dtype, const std::vector<SafetensorsItem>& items) {
  auto writer = SafetensorsWriter::Create(path, dtype, items);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const SafetensorsItem& item : items) {
    int64_t num_bytes = DTypeBytes(dtype);
    for (const int64_t dim : item.shape) num_bytes *= dim;
    ASSERT_TRUE(writer->Append(std::string(static_cast<size_t>(num_bytes), '\0')).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
}

class MadeModel : public testing::TestWithParam<DType> {};

TEST_P(MadeModel, IsACompleteCheckpoint) {
  const ScratchDir dir;
  MakeModelOptions options = TinyOptions();
  options.dtype = GetParam();
  options.config.style.qkv_bias = options.config.style.output_bias = true;
  const std::string path = MakeTiny(dir, options);
  const auto config = LoadModelConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->synthetic);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(config->shape.head_dim, 8);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto numbers = checkpoint->CheckAllTensors(*config);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(numbers->dtype, GetParam());
}

INSTANTIATE_TEST_SUITE_P(DTypes, MadeModel,
                         testing::Values(DType::kF32, DType::kF16, DType::kBf16));

TEST(MakeModel, SameSeedSameBytesOtherSeedOtherBytes) {
  const ScratchDir dir;
  MakeModelOptions options = TinyOptions();
  ASSERT_TRUE(MakeRandomModel(options, dir.Path("a")).ok());
  ASSERT_TRUE(MakeRandomModel(options, dir.Path("b")).ok());
  options.seed = 2;
  ASSERT_TRUE(MakeRandomModel(options, dir.Path("c")).ok());
  const std::string a = ReadAll(dir.Path("a/model.safetensors"));
  EXPECT_EQ(a, ReadAll(dir.Path("b/model.safetensors")));
  EXPECT_NE(a, ReadAll(dir.Path("c/model.safetensors")));
}

TEST(MakeModel, WeightsAreScaledByTheirInputs) {
  const ScratchDir dir;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    MakeModelOptions options = TinyOptions();
    options.dtype = dtype;
    options.config.shape.intermediate_size = 1024;
    const std::string path = dir.Path(DTypeName(dtype));
    ASSERT_TRUE(MakeRandomModel(options, path).ok());
    const auto checkpoint = Checkpoint::Open(path);
    const auto tensor =
        checkpoint->Tensor("model.layers.0.mlp.gate_proj.weight", std::vector<int64_t>{1024, 32});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    const TensorView* view = &tensor->view;
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < view->num_elements(); ++i) {
      double value = 0;
      if (dtype == DType::kF32) value = static_cast<const float*>(view->data)[i];
      if (dtype == DType::kF16) value = Fp16ToFloat(static_cast<const uint16_t*>(view->data)[i]);
      if (dtype == DType::kBf16) value = Bf16ToFloat(static_cast<const uint16_t*>(view->data)[i]);
      sum += value;
      squares += value * value;
    }
    // 32768 draws with deviation 1/sqrt(32) = 0.1768: the mean is within 4 / sqrt(32768) of it.
    const auto count = static_cast<double>(view->num_elements());
    EXPECT_NEAR(sum / count, 0, 0.004) << DTypeName(dtype);
    EXPECT_NEAR(std::sqrt(squares / count), 0.1768, 0.003) << DTypeName(dtype);
  }
}

TEST(MakeModel, RefusesAFullDirectoryAndBadShapes) {
  const ScratchDir dir;
  dir.Write("precious", "data");
  ExpectError(MakeRandomModel(TinyOptions(), dir.path()), absl::StatusCode::kAlreadyExists,
              "not empty");
  MakeModelOptions options = TinyOptions();
  options.config.shape.num_kv_heads = 3;
  ExpectError(MakeRandomModel(options, dir.Path("m")), absl::StatusCode::kInvalidArgument,
              "num_key_value_heads");
  EXPECT_FALSE(std::filesystem::exists(dir.Path("m")));
  options = TinyOptions();
  options.tokenizer_path = dir.Path("none");
  ExpectError(MakeRandomModel(options, dir.Path("m")), absl::StatusCode::kFailedPrecondition,
              "tokenizer");
  ExpectError(ModelPreset("gpt").status(), absl::StatusCode::kInvalidArgument, "tinyllama-1.1b");
  for (const char* name : {"tinyllama-1.1b", "llama-2-7b", "llama-3-8b"}) {
    EXPECT_TRUE(ModelPreset(name).ok()) << name;
  }
}

TEST(Checkpoint, NamesWhatIsMissing) {
  const ScratchDir dir;
  ExpectError(Checkpoint::Open(dir.path()).status(), absl::StatusCode::kNotFound,
              "neither model.safetensors nor");
}

TEST(Checkpoint, TiedEmbeddingsNeedNoOutputProjection) {
  const ScratchDir dir;
  MakeModelOptions options = TinyOptions();
  options.config.tie_word_embeddings = true;
  const std::string path = MakeTiny(dir, options);
  EXPECT_TRUE(CheckAll(path).ok()) << CheckAll(path);
  auto config = LoadModelConfig(path);
  config->tie_word_embeddings = false;
  const auto checkpoint = Checkpoint::Open(path);
  ExpectError(checkpoint->CheckAllTensors(*config).status(), absl::StatusCode::kNotFound,
              "lm_head.weight");
}

// The authors' files do not say in config.json that they are CoCA models.
TEST(Checkpoint, ACocaModelWithoutItsMarkIsExplained) {
  const std::string path = GoldenDir() + "/coca/llama_raw";
  auto config = LoadModelConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint->CheckAllTensors(*config).ok());
  config->coca_query = CocaQuery::kNone;
  ExpectError(checkpoint->CheckAllTensors(*config).status(), absl::StatusCode::kInvalidArgument,
              "add \"coca_q\": \"raw\" to its config.json");
}

TEST(Checkpoint, WrongShapesAreNamed) {
  const ScratchDir dir;
  const std::string path = MakeTiny(dir, TinyOptions());
  auto config = LoadModelConfig(path);
  config->shape.vocab_size = 51;
  const auto checkpoint = Checkpoint::Open(path);
  ExpectError(checkpoint->CheckAllTensors(*config).status(), absl::StatusCode::kInvalidArgument,
              "\"model.embed_tokens.weight\" has shape [50, 32], config.json asks for [51, 32]");
  config->shape.vocab_size = 50;
  config->shape.num_layers = 3;
  ExpectError(checkpoint->CheckAllTensors(*config).status(), absl::StatusCode::kNotFound,
              "model.layers.2.");
}

// A checkpoint of two files: tensors of the first dtype those of the given roles, the others of the
// second.
absl::StatusOr<DType> DTypeOfMixed(const std::set<TensorRole>& roles, DType first, DType second) {
  const ScratchDir dir;
  std::vector<SafetensorsItem> files[2];
  std::string map;
  for (const TensorSpec& spec : ModelTensors(TinyOptions().config)) {
    const bool in_first = roles.contains(spec.role);
    files[in_first ? 0 : 1].push_back({spec.name, spec.shape});
    map += absl::StrCat(map.empty() ? "" : ", ", "\"", spec.name, "\": \"", in_first ? "a" : "b",
                        ".safetensors\"");
  }
  dir.Write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  WriteZeros(dir.Path("a.safetensors"), first, files[0]);
  WriteZeros(dir.Path("b.safetensors"), second, files[1]);
  const auto checkpoint = Checkpoint::Open(dir.path());
  if (!checkpoint.ok()) return checkpoint.status();
  const auto numbers = checkpoint->CheckAllTensors(TinyOptions().config);
  if (!numbers.ok()) return numbers.status();
  return numbers->dtype;
}

TEST(Checkpoint, MatricesHaveTheDTypeOfMostOfTheirElements) {
  const auto expect = [](const std::set<TensorRole>& roles, DType first, DType second,
                         DType expected) {
    const auto dtype = DTypeOfMixed(roles, first, second);
    ASSERT_TRUE(dtype.ok()) << dtype.status();
    EXPECT_EQ(*dtype, expected) << DTypeName(first) << " and " << DTypeName(second);
  };
  // Vectors are fp32 in any case.
  expect({TensorRole::kNorm}, DType::kF32, DType::kBf16, DType::kBf16);
  expect({TensorRole::kNorm}, DType::kBf16, DType::kF16, DType::kF16);
  expect({TensorRole::kNorm}, DType::kF16, DType::kF32, DType::kF32);
  expect({TensorRole::kEmbedding}, DType::kF32, DType::kBf16, DType::kBf16);
  expect({TensorRole::kEmbedding}, DType::kBf16, DType::kF32, DType::kF32);
  // Neither half holds the other, and fp16 not what fp32 may hold.
  expect({TensorRole::kEmbedding}, DType::kBf16, DType::kF16, DType::kF32);
  expect({TensorRole::kEmbedding}, DType::kF32, DType::kF16, DType::kF32);
}

TEST(Checkpoint, IntegersAreRefused) {
  ExpectError(DTypeOfMixed({TensorRole::kEmbedding}, DType::kF32, DType::kI32).status(),
              absl::StatusCode::kUnimplemented, "I32");
}

TEST(Checkpoint, AShardMustHoldWhatTheIndexSays) {
  const ScratchDir dir;
  WriteZeros(dir.Path("a.safetensors"), DType::kF32, {{"x", {1}}});
  dir.Write("model.safetensors.index.json", R"({"weight_map": {"y": "a.safetensors"}})");
  ExpectError(Checkpoint::Open(dir.path()).status(), absl::StatusCode::kInvalidArgument,
              "a.safetensors holds the tensor \"y\"");
  dir.Write("model.safetensors.index.json", R"({"weight_map": {"x": "b.safetensors"}})");
  ExpectError(Checkpoint::Open(dir.path()).status(), absl::StatusCode::kNotFound, "b.safetensors");
}

TEST(ShardIndex, RefusesNonsenseAndFilesElsewhere) {
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})",
        R"({"weight_map": {"x": 1}})", R"({"weight_map": {"x": ""}})",
        R"({"weight_map": {"x": "../a.safetensors"}})", R"({"weight_map": {"x": "a.bin"}})",
        R"({"weight_map": {"x": "/etc/a.safetensors"}})",
        R"({"weight_map": {"x": "d\\a.safetensors"}})",
        R"({"weight_map": {"x": "a\u0000.safetensors"}})",
        R"({"weight_map": {"x": ".safetensors"}})",
        R"({"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}})"}) {
    EXPECT_EQ(ParseShardIndex(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Checkpoint, ReadsEveryGoldenModel) {
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDir() + "/llama")) {
    if (!entry.is_directory()) continue;
    const absl::Status status = CheckAll(entry.path().string());
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace folio
