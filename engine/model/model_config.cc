#include "engine/model/model_config.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"
#include "engine/model/rope_config.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr char kKnownArchitecture[] = "LlamaForCausalLM";
constexpr char kKnownModelType[] = "llama";

// Limits that keep every product of two of them inside 64 bits and every count inside an int.
constexpr int kMaxLayers = 512;
constexpr int kMaxWidth = 1 << 18;  // hidden_size, intermediate_size
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 256;
constexpr int kMaxVocab = 1'000'000;
constexpr int kMaxTrainedLength = 1 << 26;
constexpr size_t kMaxTokenIds = 64;

absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& json, const char* key, int32_t otherwise,
                                              int vocab_size) {
  const auto it = json.find(key);
  if (it == json.end()) {
    // The default of the class only where the vocabulary has it.
    if (otherwise < vocab_size) return std::vector<int32_t>{otherwise};
    return std::vector<int32_t>{};
  }
  std::vector<int32_t> ids;
  if (it->is_null()) return ids;
  const IntRange range = {0, vocab_size - 1};
  if (!it->is_array()) {
    FOLIO_ASSIGN_OR_RETURN(const int id, ReadInt(*it, key, range));
    ids.push_back(id);
    return ids;
  }
  if (it->size() > kMaxTokenIds) {
    return Bad(key, *it, absl::StrCat("at most ", kMaxTokenIds, " token ids"));
  }
  for (const Json& value : *it) {
    FOLIO_ASSIGN_OR_RETURN(const int id, ReadInt(value, key, range));
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::string> CheckArchitecture(const Json& json) {
  FOLIO_ASSIGN_OR_RETURN(const std::string model_type,
                         OptionalString(json, "model_type", kKnownModelType));
  if (model_type != kKnownModelType) {
    return absl::UnimplementedError(
        absl::StrCat("\"model_type\" is ", Shown(model_type), "; known: ", kKnownModelType));
  }
  const Json* list = Find(json, "architectures");
  if (list == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"architectures\" is missing; known: ", kKnownArchitecture));
  }
  if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
    return Bad("architectures", *list, "a list of one string");
  }
  auto architecture = list->front().get<std::string>();
  if (architecture != kKnownArchitecture) {
    return absl::UnimplementedError(
        absl::StrCat("\"architectures\" is ", Shown(*list), "; known: ", kKnownArchitecture));
  }
  return architecture;
}

absl::Status CheckSupported(const Json& json) {
  FOLIO_ASSIGN_OR_RETURN(const std::string act, OptionalString(json, "hidden_act", "silu"));
  if (act != "silu") {
    return absl::UnimplementedError(
        absl::StrCat("\"hidden_act\" is ", Shown(act), "; known: \"silu\""));
  }
  FOLIO_ASSIGN_OR_RETURN(const bool mlp_bias, OptionalBool(json, "mlp_bias"));
  if (mlp_bias) {
    return absl::UnimplementedError("\"mlp_bias\" is true; known: false");
  }
  if (const Json* quantization = Find(json, "quantization_config"); quantization != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("\"quantization_config\" is ", Shown(*quantization),
                     "; known: null. Use a checkpoint of fp32, fp16 or bf16 weights"));
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const Json& json, ModelShape* shape) {
  FOLIO_ASSIGN_OR_RETURN(shape->num_heads,
                         RequiredInt(json, "num_attention_heads", {1, kMaxHeads}));
  FOLIO_ASSIGN_OR_RETURN(shape->num_kv_heads, OptionalInt(json, "num_key_value_heads",
                                                          {1, shape->num_heads}, shape->num_heads));
  if (shape->num_heads % shape->num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"num_attention_heads\" is ", shape->num_heads,
        ", expected a multiple of \"num_key_value_heads\", which is ", shape->num_kv_heads));
  }
  if (Find(json, "head_dim") == nullptr && shape->hidden_size % shape->num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"hidden_size\" is ", shape->hidden_size, ", expected a multiple of ",
        "\"num_attention_heads\", which is ", shape->num_heads, ", as \"head_dim\" is absent"));
  }
  FOLIO_ASSIGN_OR_RETURN(shape->head_dim, OptionalInt(json, "head_dim", {8, kMaxHeadDim},
                                                      shape->hidden_size / shape->num_heads));
  if (shape->head_dim < 8 || shape->head_dim > kMaxHeadDim || shape->head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"head_dim\" is ", shape->head_dim, ", expected an even number from 8 to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelShape> ReadShape(const Json& json) {
  ModelShape shape;
  FOLIO_ASSIGN_OR_RETURN(shape.num_layers, RequiredInt(json, "num_hidden_layers", {1, kMaxLayers}));
  FOLIO_ASSIGN_OR_RETURN(shape.hidden_size, RequiredInt(json, "hidden_size", {1, kMaxWidth}));
  FOLIO_ASSIGN_OR_RETURN(shape.intermediate_size,
                         RequiredInt(json, "intermediate_size", {1, kMaxWidth}));
  FOLIO_ASSIGN_OR_RETURN(shape.vocab_size, RequiredInt(json, "vocab_size", {2, kMaxVocab}));
  FOLIO_ASSIGN_OR_RETURN(shape.trained_length,
                         RequiredInt(json, "max_position_embeddings", {1, kMaxTrainedLength}));
  FOLIO_RETURN_IF_ERROR(ReadHeads(json, &shape));
  FOLIO_ASSIGN_OR_RETURN(shape.rms_norm_eps, OptionalDouble(json, "rms_norm_eps", {0, 0.1}, 1e-6));
  return shape;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("config.json", text));
  ModelConfig config;
  FOLIO_ASSIGN_OR_RETURN(config.architecture, CheckArchitecture(json));
  FOLIO_RETURN_IF_ERROR(CheckSupported(json));
  FOLIO_ASSIGN_OR_RETURN(config.shape, ReadShape(json));
  FOLIO_ASSIGN_OR_RETURN(config.rope, ReadRope(json, config.shape));
  FOLIO_ASSIGN_OR_RETURN(config.tie_word_embeddings, OptionalBool(json, "tie_word_embeddings"));
  FOLIO_ASSIGN_OR_RETURN(config.attention_bias, OptionalBool(json, "attention_bias"));
  FOLIO_ASSIGN_OR_RETURN(config.synthetic, OptionalBool(json, "folio_synthetic"));
  FOLIO_ASSIGN_OR_RETURN(const std::string dtype, OptionalString(json, "dtype", ""));
  FOLIO_ASSIGN_OR_RETURN(config.torch_dtype, OptionalString(json, "torch_dtype", dtype));
  const int vocab_size = config.shape.vocab_size;
  FOLIO_ASSIGN_OR_RETURN(config.bos_token_ids, TokenIds(json, "bos_token_id", 1, vocab_size));
  FOLIO_ASSIGN_OR_RETURN(config.eos_token_ids, TokenIds(json, "eos_token_id", 2, vocab_size));
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/config.json");
  FOLIO_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(dir, ": ", config.status().message()));
}

}  // namespace folio
