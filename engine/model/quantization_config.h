#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/json_fields.h"

namespace folio {

// How the matrices of a Hugging Face checkpoint are quantised: "quantization_config" of its
// config.json.
struct QuantizationConfig {
  enum class Method : unsigned char { kNone, kGptq, kAwq, kFp8 };
  Method method = Method::kNone;
  // GPTQ and AWQ: inputs that share a scale and a zero; 0: all of a row.
  int group = 0;
  // GPTQ: zeros are kept one lower than they are.
  bool zeros_below = false;
  // fp8: rows and columns of a block that shares a scale; 0: one scale for the matrix, or for each
  // row.
  int block_rows = 0;
  int block_columns = 0;
};

// Of the text of a config.json: GPTQ and AWQ (gemm) of 4 bits, and fp8 (E4M3) in the forms fp8 and
// compressed-tensors. Errors: INVALID_ARGUMENT names the key; UNIMPLEMENTED for other methods.
absl::StatusOr<QuantizationConfig> ReadQuantization(const Json& config);
absl::StatusOr<QuantizationConfig> ParseQuantization(std::string_view config_json);

}  // namespace folio
