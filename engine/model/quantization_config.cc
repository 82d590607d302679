#include "engine/model/quantization_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"

namespace folio {
namespace {

using Method = QuantizationConfig::Method;

constexpr char kKey[] = "quantization_config";
constexpr int kMaxGroup = 1 << 18;
constexpr int kMaxBlock = 1 << 16;

absl::Status Unknown(const std::string& key, const Json& value, const std::string& known) {
  return absl::UnimplementedError(
      absl::StrCat("\"", kKey, ".", key, "\" is ", Shown(value), "; known: ", known,
                   ". Take a checkpoint of these, or one of fp32, fp16 or bf16 weights"));
}

// A text that must be one of those that are known, or absent.
absl::Status CheckText(const Json& json, const char* key, const std::string& known) {
  FOLIO_ASSIGN_OR_RETURN(const std::string text, OptionalString(json, key, known));
  return text == known ? absl::OkStatus() : Unknown(key, text, absl::StrCat("\"", known, "\""));
}

absl::Status ReadIntegers(const Json& json, QuantizationConfig* config) {
  FOLIO_ASSIGN_OR_RETURN(const int bits, RequiredInt(json, "bits", {1, 64}));
  if (bits != 4) return Unknown("bits", bits, "4");
  FOLIO_ASSIGN_OR_RETURN(const int group, RequiredInt(json, "group_size", {-1, kMaxGroup}));
  if (group == 0) return Bad("group_size", group, "-1, or inputs that share a scale");
  config->group = group < 0 ? 0 : group;
  return absl::OkStatus();
}

absl::Status ReadGptq(const Json& json, QuantizationConfig* config) {
  config->method = Method::kGptq;
  FOLIO_RETURN_IF_ERROR(ReadIntegers(json, config));
  FOLIO_ASSIGN_OR_RETURN(const std::string format,
                         OptionalString(json, "checkpoint_format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return Unknown("checkpoint_format", format, "gptq and gptq_v2");
  }
  config->zeros_below = format == "gptq";
  return absl::OkStatus();
}

absl::Status ReadAwq(const Json& json, QuantizationConfig* config) {
  config->method = Method::kAwq;
  FOLIO_RETURN_IF_ERROR(ReadIntegers(json, config));
  return CheckText(json, "version", "gemm");
}

absl::Status ReadBlock(const Json& json, const char* key, QuantizationConfig* config) {
  const Json* sides = Find(json, key);
  if (sides == nullptr) return absl::OkStatus();
  if (!sides->is_array() || sides->size() != 2) return Bad(key, *sides, "rows and columns");
  FOLIO_ASSIGN_OR_RETURN(config->block_rows, ReadInt((*sides)[0], key, {1, kMaxBlock}));
  FOLIO_ASSIGN_OR_RETURN(config->block_columns, ReadInt((*sides)[1], key, {1, kMaxBlock}));
  return absl::OkStatus();
}

absl::Status ReadFp8(const Json& json, QuantizationConfig* config) {
  config->method = Method::kFp8;
  FOLIO_RETURN_IF_ERROR(CheckText(json, "fmt", "e4m3"));
  return ReadBlock(json, "weight_block_size", config);
}

// The groups name modules; all that are quantised must be fp8.
absl::Status ReadCompressedTensors(const Json& json, QuantizationConfig* config) {
  config->method = Method::kFp8;
  FOLIO_ASSIGN_OR_RETURN(const std::string format, OptionalString(json, "format", ""));
  if (format != "float-quantized") return Unknown("format", format, "float-quantized");
  const Json* groups = Find(json, "config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    return absl::InvalidArgumentError("\"config_groups\" is missing or no object");
  }
  for (const auto& [name, group] : groups->items()) {
    const Json* weights = group.is_object() ? Find(group, "weights") : nullptr;
    if (weights == nullptr || !weights->is_object()) return Bad("config_groups", group, "weights");
    FOLIO_ASSIGN_OR_RETURN(const int bits, RequiredInt(*weights, "num_bits", {1, 64}));
    if (bits != 8) return Unknown("config_groups.weights.num_bits", bits, "8");
    FOLIO_RETURN_IF_ERROR(CheckText(*weights, "type", "float"));
    FOLIO_RETURN_IF_ERROR(ReadBlock(*weights, "block_structure", config));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizationConfig> ReadQuantization(const Json& json) {
  QuantizationConfig config;
  const Json* quantization = Find(json, kKey);
  if (quantization == nullptr) return config;
  if (!quantization->is_object()) return Bad(kKey, *quantization, "an object or null");
  FOLIO_ASSIGN_OR_RETURN(const std::string method,
                         OptionalString(*quantization, "quant_method", ""));
  absl::Status status;
  if (method == "gptq") {
    status = ReadGptq(*quantization, &config);
  } else if (method == "awq") {
    status = ReadAwq(*quantization, &config);
  } else if (method == "fp8") {
    status = ReadFp8(*quantization, &config);
  } else if (method == "compressed-tensors") {
    status = ReadCompressedTensors(*quantization, &config);
  } else {
    status = Unknown("quant_method", method, "gptq, awq, fp8 and compressed-tensors");
  }
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<QuantizationConfig> ParseQuantization(std::string_view config_json) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("config.json", config_json));
  return ReadQuantization(json);
}

}  // namespace folio
