// Small directories of GPTQ, AWQ and fp8 that another program wrote
// (tests/reference/quantised_models.py).
#include "engine/model/quantised_checkpoint.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/model/fp8_linear.h"
#include "engine/model/safetensors_writer.h"
#include "engine/tools/pack_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/golden_logits.h"
#include "tests/engine/packed_rows.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using testing::HasSubstr;

std::string ModelOf(const std::string& name) { return GoldenDir() + "/quantised/" + name; }

struct Case {
  const char* name;
  const char* automatic;   // --weight-dtype auto
  const char* conversion;  // a part of it
  int scale_group;         // of the numbers as they are read; 0: they are no integers times scales
  double limit;            // of the deviation of logits in these numbers
};
constexpr Case kCases[] = {
    {"gptq", "int4/32", "GPTQ int4 (7 matrices), layers kept as int4/32, lossless", 32, 0.06},
    {"gptq_row", "int4/128", "layers kept as int4/128, lossless", 128, 0.06},
    {"gptq_act_order", "int4/32", "quantised again to the nearest int4/32", 0, 0.3},
    {"awq", "int4/32", "AWQ int4 (7 matrices), dequantised and quantised again", 0, 0.3},
    {"fp8_block", "int8/128", "fp8 (7 matrices), dequantised and quantised again", 0, 0.05},
    {"fp8_tensor", "int8/128", "quantised again to the nearest int8/128", 0, 0.05},
    {"fp8_channel", "int8/128", "quantised again to the nearest int8/128", 0, 0.05},
};

class QuantisedModel : public testing::TestWithParam<Case> {
 protected:
  std::string path_ = ModelOf(GetParam().name);
};

TEST_P(QuantisedModel, GivesTheNumbersOfTheDefinition) {
  const ModelConfig config = *LoadModelConfig(path_);
  const auto source = OpenWeightSource(path_, config);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto golden = SafetensorsFile::Open(path_ + "/golden.safetensors");
  int num_tensors = 0;
  for (const auto& [tensor, entry] : golden->entries()) {
    if (!tensor.starts_with("model.")) continue;
    ++num_tensors;
    const auto read = (*source)->Tensor(tensor, entry.shape);
    ASSERT_TRUE(read.ok()) << read.status();
    const OwnedTensor expected = *golden->Tensor(tensor);
    EXPECT_EQ(std::memcmp(read->view.data, expected.view.data, expected.view.num_bytes()), 0)
        << tensor;
    EXPECT_EQ(read->view.scale_group % 128, GetParam().scale_group % 128);
    EXPECT_EQ(read->view.scales != nullptr, GetParam().scale_group > 0);
    if (read->view.scales == nullptr) continue;
    const auto numbers = (*source)->CheckAllTensors(config);
    const std::vector<float> kept = test::PackedAndRead(read->view, numbers->nearest);
    EXPECT_EQ(std::memcmp(kept.data(), expected.view.data, expected.view.num_bytes()), 0) << tensor;
  }
  EXPECT_EQ(num_tensors, 2);
}

TEST_P(QuantisedModel, InFp32HasTheLogitsOfTheReference) {
  const auto model = test::LoadTestModel(path_, {.kv_dtype = "fp32", .weight_dtype = "fp32"});
  EXPECT_EQ(model->info.weight_dtype, "fp32");
  EXPECT_THAT(model->info.weight_conversion, HasSubstr("dequantised to fp32"));
  EXPECT_LE(test::GoldenDifference(model.get(), path_), 1e-4f);
}

TEST_P(QuantisedModel, IsKeptInTheNumbersThatAreNearest) {
  const auto model = test::LoadTestModel(path_, {.kv_dtype = "fp32"});
  EXPECT_EQ(model->info.weight_dtype, GetParam().automatic);
  EXPECT_THAT(model->info.weight_conversion, HasSubstr(GetParam().conversion));
  const double deviation = test::GoldenDeviation(model.get(), path_);
  EXPECT_LE(deviation, GetParam().limit);
  EXPECT_GT(deviation, 1e-4);  // it was not fp32
}

TEST_P(QuantisedModel, PackedInADirectoryIsTheSame) {
  const ScratchDir dir;
  const absl::Status packed =
      PackModel({.checkpoint_dir = path_, .weight_dtype = "int8"}, dir.Path("m"));
  ASSERT_TRUE(packed.ok()) << packed;
  const auto given = test::LoadTestModel(path_, {.kv_dtype = "fp32", .weight_dtype = "int8"});
  const auto again = test::LoadTestModel(dir.Path("m"), {.kv_dtype = "fp32"});
  EXPECT_EQ(test::LogitsOfGolden(again.get(), path_), test::LogitsOfGolden(given.get(), path_));
}

INSTANTIATE_TEST_SUITE_P(Golden, QuantisedModel, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Fp8, EveryValue) {
  const auto file = SafetensorsFile::Open(ModelOf("fp8_values.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const OwnedTensor values = *file->Tensor("values");
  for (int bits = 0; bits < 256; ++bits) {
    const float value = Fp8ToFloat(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, static_cast<const float*>(values.view.data)[bits]) << bits;
    }
  }
  EXPECT_EQ(Fp8ToFloat(0x7e), 448.0f);
  EXPECT_EQ(Fp8ToFloat(0x81), -0x1p-9f);
}

// A copy of a golden directory with a changed text in its config or bytes in its tensors.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& name) {
    std::filesystem::copy(ModelOf(name), dir_.Path("m"));
  }

  void Replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string bytes = ReadAll(dir_.Path("m/" + file));
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    dir_.Write("m/" + file, bytes.replace(at, from.size(), to));
  }

  // The first bytes of a tensor.
  void Overwrite(const std::string& tensor, const std::string& bytes) const {
    const std::string path = dir_.Path("m/model.safetensors");
    std::string all = ReadAll(path);
    const SafetensorsEntry entry = SafetensorsFile::Open(path)->entries().at(tensor);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, all.data(), sizeof(header_bytes));
    dir_.Write("m/model.safetensors",
               all.replace(sizeof(header_bytes) + header_bytes + entry.begin, bytes.size(), bytes));
  }

  std::string path() const { return dir_.Path("m"); }
  // How the log says its numbers are kept.
  std::string Conversion() const {
    return test::LoadTestModel(path(), {.kv_dtype = "fp32"})->info.weight_conversion;
  }
  // Of the first matrix of the layer: fp16 numbers instead of those of GPTQ.
  void MakeHalves() const;

  void ExpectRefused(absl::StatusCode code, const std::string& part) const {
    EngineOptions options;
    options.model_dir = dir_.Path("m");
    options.num_threads = 1;
    options.kv_bytes = 1 << 24;
    const absl::Status status = LoadModel(options, /*tokenizer_required=*/false).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

 private:
  const ScratchDir dir_;
};

void ChangedModel::MakeHalves() const {
  constexpr char kMatrix[] = "model.layers.0.self_attn.q_proj";
  const auto file = SafetensorsFile::Open(path() + "/model.safetensors");
  std::vector<SafetensorsItem> items = {{absl::StrCat(kMatrix, ".weight"), {32, 32}}};
  std::string bytes(2 * 32 * 32, '\0');
  std::map<std::string, SafetensorsEntry> others;
  for (const auto& [name, entry] : file->entries()) {
    if (!name.starts_with(kMatrix)) others.emplace(name, entry);
  }
  // Its numbers are of another kind than those of the rest, which so come from a file of their own.
  std::filesystem::rename(path() + "/model.safetensors", path() + "/others.safetensors");
  auto writer = SafetensorsWriter::Create(path() + "/half.safetensors", DType::kF16, items);
  ASSERT_TRUE(writer.ok() && writer->Append(bytes).ok() && writer->Finish().ok());
  std::string index = R"({"weight_map": {)";
  absl::StrAppend(&index, "\"", items[0].name, "\": \"half.safetensors\"");
  for (const auto& [name, entry] : others) {
    absl::StrAppend(&index, ", \"", name, "\": \"others.safetensors\"");
  }
  dir_.Write("m/model.safetensors.index.json", index + "}}");
}

// What the config says of it is not true of every file.
TEST(QuantisedCheckpoint, IntegersAreCalledKeptWhereTheFileHasThem) {
  constexpr char kSymmetric[] = "\"sym\": true";
  constexpr char kKept[] = "layers kept as int4/32, lossless";
  constexpr char kAgain[] = "dequantised and quantised again to the nearest int4/32";
  const ChangedModel other_claim("gptq");
  other_claim.Replace("config.json", kSymmetric, "\"sym\": false");
  EXPECT_THAT(other_claim.Conversion(), HasSubstr(kKept));
  const ChangedModel zeros("gptq");
  zeros.Overwrite("model.layers.0.mlp.down_proj.qzeros", "\x78");
  EXPECT_THAT(zeros.Conversion(), HasSubstr(kAgain));
  const ChangedModel order("gptq");
  order.Overwrite("model.layers.0.mlp.down_proj.g_idx", std::string("\x01\0\0\0", 4));
  EXPECT_THAT(order.Conversion(), HasSubstr(kAgain));
  const ChangedModel halves("gptq");
  halves.MakeHalves();
  EXPECT_THAT(halves.Conversion(), HasSubstr("(6 matrices), dequantised and quantised again"));
}

TEST(QuantisedCheckpoint, TensorsThatDoNotGoTogetherAreNamed) {
  using Code = absl::StatusCode;
  const ChangedModel other_group("gptq");
  other_group.Replace("config.json", "\"group_size\": 32", "\"group_size\": 16");
  other_group.ExpectRefused(Code::kInvalidArgument,
                            "q_proj.qzeros\" is I32 [1, 4], config.json asks for I32 [2, 4]");
  const ChangedModel no_zeros("gptq");
  no_zeros.Replace("model.safetensors", "k_proj.qzeros", "k_proj.qzerox");
  no_zeros.ExpectRefused(Code::kNotFound, "k_proj.qzeros\"");
  const ChangedModel awq_as_gptq("awq");
  awq_as_gptq.Replace("config.json", "\"awq\"", "\"gptq\"");
  awq_as_gptq.ExpectRefused(Code::kInvalidArgument, "qweight\" is I32 [32, 4]");
  const ChangedModel block("fp8_block");
  block.Replace("config.json", "16,", "32,");
  block.ExpectRefused(Code::kInvalidArgument, "weight_scale_inv\" is F32 [2, 2]");
}

TEST(QuantisedCheckpoint, BadNumbersAreNamed) {
  const ChangedModel group("gptq_act_order");
  group.Overwrite("model.layers.0.mlp.up_proj.g_idx", std::string("\xff\xff\xff\xff", 4));
  group.ExpectRefused(absl::StatusCode::kInvalidArgument,
                      "up_proj.g_idx\" puts input 0 into group 4294967295 of 2");
  const ChangedModel nan("fp8_channel");
  nan.Overwrite("model.layers.0.mlp.up_proj.weight", "\x11\x7f");
  nan.ExpectRefused(absl::StatusCode::kDataLoss, "up_proj.weight\": number 1 of 2048");
  const ChangedModel infinite("awq");
  infinite.Overwrite("model.layers.0.self_attn.v_proj.scales", std::string("\x00\x7c", 2));
  infinite.ExpectRefused(absl::StatusCode::kDataLoss, "v_proj.qweight\": number");
}

TEST(QuantisedCheckpoint, AConfigWithoutQuantisedTensors) {
  const ScratchDir dir;
  test::WriteTinyModel({}, dir.Path("m"));
  std::string config = ReadAll(dir.Path("m/config.json"));
  config.insert(config.find('{') + 1, R"("quantization_config": {"quant_method": "fp8"},)");
  dir.Write("m/config.json", config);
  EngineOptions options;
  options.model_dir = dir.Path("m");
  const absl::Status status = LoadModel(options, /*tokenizer_required=*/false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no tensor of the checkpoint is quantised"));
}

struct BadConfig {
  const char* quantization;
  absl::StatusCode code;
  const char* part;
};

TEST(QuantizationConfig, OthersAreRefusedByName) {
  using Code = absl::StatusCode;
  for (
      const auto& [quantization, code, part] : {
          BadConfig{"7", Code::kInvalidArgument, "\"quantization_config\" is 7"},
          BadConfig{R"({})", Code::kUnimplemented, "quant_method\" is \"\"; known: gptq, awq"},
          BadConfig{R"({"quant_method": "bitsandbytes"})", Code::kUnimplemented, "bitsandbytes"},
          BadConfig{R"({"quant_method": "gptq", "bits": 8, "group_size": 128})",
                    Code::kUnimplemented, "bits\" is 8; known: 4"},
          BadConfig{R"({"quant_method": "gptq", "bits": 4})", Code::kInvalidArgument,
                    "\"group_size\" is missing"},
          BadConfig{R"({"quant_method": "gptq", "bits": 4, "group_size": 0})",
                    Code::kInvalidArgument, "\"group_size\" is 0"},
          BadConfig{R"({"quant_method": "gptq", "bits": 4, "group_size": -2})",
                    Code::kInvalidArgument, "\"group_size\" is -2"},
          BadConfig{
              R"({"quant_method": "gptq", "bits": 4, "group_size": 1, "checkpoint_format": "marlin"})",
              Code::kUnimplemented, "marlin"},
          BadConfig{R"({"quant_method": "awq", "bits": 4, "group_size": 1, "version": "gemv"})",
                    Code::kUnimplemented, "version\" is \"gemv\""},
          BadConfig{R"({"quant_method": "fp8", "fmt": "e5m2"})", Code::kUnimplemented, "e5m2"},
          BadConfig{R"({"quant_method": "fp8", "weight_block_size": [0, 1]})",
                    Code::kInvalidArgument, "\"weight_block_size\" is 0"},
          BadConfig{R"({"quant_method": "fp8", "weight_block_size": [1]})", Code::kInvalidArgument,
                    "rows and columns"},
          BadConfig{R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
                    Code::kUnimplemented, "pack-quantized"},
          BadConfig{R"({"quant_method": "compressed-tensors", "format": "float-quantized"})",
                    Code::kInvalidArgument, "config_groups"},
          BadConfig{
              R"({"quant_method": "compressed-tensors", "format": "float-quantized",
                   "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}})",
              Code::kUnimplemented, "type\" is \"int\""},
      }) {
    const absl::Status status =
        ParseQuantization(absl::StrCat(R"({"quantization_config": )", quantization, "}")).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(QuantizationConfig, KnownForms) {
  EXPECT_EQ(ParseQuantization("{}")->method, QuantizationConfig::Method::kNone);
  const auto v2 = ParseQuantization(
      R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
          "checkpoint_format": "gptq_v2"}})");
  EXPECT_FALSE(v2->zeros_below);
  EXPECT_EQ(v2->group, 128);
  const auto awq = ParseQuantization(
      R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": -1}})");
  EXPECT_EQ(awq->group, 0);
  const auto blocks = ParseQuantization(
      R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
          "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "block",
                                              "block_structure": [128, 64]}}}}})");
  EXPECT_EQ(blocks->block_rows, 128);
  EXPECT_EQ(blocks->block_columns, 64);
}

}  // namespace
}  // namespace folio
