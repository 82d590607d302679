#include "engine/tools/make_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors_writer.h"
#include "engine/tools/make_model_random.h"
#include "engine/tools/model_directory.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

constexpr size_t kChunkElements = 1 << 20;

struct Preset {
  const char* name;
  ModelShape shape;  // in the order of its fields
  double rope_theta;
  int32_t bos;
  int32_t eos;
};

constexpr Preset kPresets[] = {
    {"tinyllama-1.1b", {22, 2048, 5632, 32, 4, 64, 32000, 2048, 1e-5}, 1e4, 1, 2},
    {"llama-2-7b", {32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e-5}, 1e4, 1, 2},
    {"llama-3-8b", {32, 4096, 14336, 32, 8, 128, 128256, 8192, 1e-5}, 5e5, 128000, 128001},
};

const char* TorchName(DType dtype) {
  if (dtype == DType::kF32) return "float32";
  return dtype == DType::kF16 ? "float16" : "bfloat16";
}

nlohmann::ordered_json TokenIdsJson(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

std::string ConfigText(const MakeModelOptions& options) {
  const ModelShape& shape = options.config.shape;
  const nlohmann::ordered_json json = {
      {"_name_or_path", absl::StrCat("folio-synthetic/", options.label)},
      {"folio_synthetic", true},
      {"folio_seed", options.seed},
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"attention_bias", options.config.style.qkv_bias},
      {"bos_token_id", TokenIdsJson(options.config.bos_token_ids)},
      {"eos_token_id", TokenIdsJson(options.config.eos_token_ids)},
      {"head_dim", shape.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", shape.hidden_size},
      {"intermediate_size", shape.intermediate_size},
      {"max_position_embeddings", shape.trained_length},
      {"mlp_bias", false},
      {"num_attention_heads", shape.num_heads},
      {"num_hidden_layers", shape.num_layers},
      {"num_key_value_heads", shape.num_kv_heads},
      {"rms_norm_eps", shape.norm_eps},
      {"rope_scaling", nullptr},
      {"rope_theta", options.config.rope.base},
      {"tie_word_embeddings", options.config.tie_word_embeddings},
      {"torch_dtype", TorchName(options.dtype)},
      {"vocab_size", shape.vocab_size},
  };
  return json.dump(2) + "\n";
}

// Writes the tensors one after the other through a buffer of kChunkElements.
class WeightWriter {
 public:
  WeightWriter(const MakeModelOptions& options, SafetensorsWriter* file)
      : options_(options), file_(file), random_(options.seed) {}

  absl::Status Write(const TensorSpec& spec) {
    int64_t num_elements = 1;
    for (const int64_t dim : spec.shape) num_elements *= dim;
    if (spec.role == TensorRole::kNorm) return WriteConstant(1.0f, num_elements);
    if (spec.role == TensorRole::kBias) return WriteConstant(0.0f, num_elements);
    return WriteRandom(TableFor(StandardDeviation(spec)), num_elements);
  }

 private:
  double StandardDeviation(const TensorSpec& spec) const {
    const double scale = 1 / std::sqrt(static_cast<double>(spec.shape.back()));
    if (spec.role != TensorRole::kResidualProjection) return scale;
    return scale / std::sqrt(2.0 * options_.config.shape.num_layers);
  }

  const NormalTable& TableFor(double deviation) {
    std::unique_ptr<NormalTable>& table = tables_[deviation];
    if (table == nullptr) table = std::make_unique<NormalTable>(options_.dtype, deviation);
    return *table;
  }

  absl::Status WriteConstant(float value, int64_t num_elements) {
    const std::string element = EncodeElement(value, options_.dtype);
    std::string bytes;
    for (int64_t i = 0; i < num_elements; ++i) bytes += element;
    return file_->Append(bytes);
  }

  absl::Status WriteRandom(const NormalTable& table, int64_t num_elements) {
    const auto element_bytes = static_cast<size_t>(DTypeBytes(options_.dtype));
    buffer_.resize(kChunkElements * element_bytes);
    for (auto left = static_cast<size_t>(num_elements); left > 0;) {
      const size_t count = std::min(left, kChunkElements);
      table.Fill(&random_, count, buffer_.data());
      FOLIO_RETURN_IF_ERROR(file_->Append({buffer_.data(), count * element_bytes}));
      left -= count;
    }
    return absl::OkStatus();
  }

  const MakeModelOptions& options_;
  SafetensorsWriter* file_;
  RandomBits random_;
  std::map<double, std::unique_ptr<NormalTable>> tables_;
  std::vector<char> buffer_;
};

absl::Status WriteWeights(const MakeModelOptions& options, const std::string& path) {
  const std::vector<TensorSpec> specs = ModelTensors(options.config);
  std::vector<SafetensorsItem> items;
  items.reserve(specs.size());
  for (const TensorSpec& spec : specs) items.push_back({spec.name, spec.shape});
  FOLIO_ASSIGN_OR_RETURN(SafetensorsWriter file,
                         SafetensorsWriter::Create(path, options.dtype, items));
  WeightWriter weights(options, &file);
  for (const TensorSpec& spec : specs) FOLIO_RETURN_IF_ERROR(weights.Write(spec));
  return file.Finish();
}

}  // namespace

absl::StatusOr<ModelConfig> ModelPreset(const std::string& name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (name == preset.name) {
      ModelConfig config;
      config.shape = preset.shape;
      config.rope.base = preset.rope_theta;
      config.bos_token_ids = {preset.bos};
      config.eos_token_ids = {preset.eos};
      return config;
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", preset.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--preset is \"", name, "\"; known: ", known));
}

absl::Status MakeRandomModel(const MakeModelOptions& options, const std::string& dir) {
  if (options.dtype == DType::kI32) {
    return absl::InvalidArgumentError("weights cannot be int32; known: fp32, fp16, bf16");
  }
  const std::string config_text = ConfigText(options);
  FOLIO_RETURN_IF_ERROR(ParseModelConfig(config_text).status());
  FOLIO_RETURN_IF_ERROR(MakeEmptyDirectory(dir));
  if (!options.tokenizer_path.empty()) {
    FOLIO_RETURN_IF_ERROR(CopyModelFile(options.tokenizer_path, dir + "/tokenizer.model"));
  }
  FOLIO_RETURN_IF_ERROR(WriteWeights(options, dir + "/model.safetensors"));

  std::ofstream config_file(dir + "/config.json", std::ios::binary);
  config_file << config_text;
  config_file.close();
  if (!config_file) return absl::DataLossError(absl::StrCat("cannot write ", dir, "/config.json"));
  return absl::OkStatus();
}

}  // namespace folio
