#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/tensor/tensor_view.h"

namespace folio {

// What MakeRandomModel writes. The result is as large and as fast as the real model of that shape,
// and its text is noise.
struct MakeModelOptions {
  ModelConfig config;          // architecture, torch_dtype and synthetic are set by the maker
  DType dtype = DType::kBf16;  // fp32, fp16 or bf16
  uint64_t seed = 1;
  std::string label = "custom";  // goes into "_name_or_path": "folio-synthetic/LABEL"
  std::string tokenizer_path;    // copied to tokenizer.model; "" writes none
};

// The shape of a well-known model: "tinyllama-1.1b", "llama-2-7b" or "llama-3-8b".
// Errors: INVALID_ARGUMENT lists the known names.
absl::StatusOr<ModelConfig> ModelPreset(const std::string& name);

// Writes a Hugging Face directory (config.json, model.safetensors, tokenizer.model) with random
// weights: normal with standard deviation 1/sqrt(inputs), the two projections into the residual
// stream divided by sqrt(2 layers), norms 1, biases 0. The same options give the same bytes. Holds
// a few MiB at a time. config.json comes last: a directory that has one is complete.
// Errors: INVALID_ARGUMENT for a shape that ParseModelConfig would refuse; ALREADY_EXISTS when
// `dir` is not empty; DATA_LOSS when the disk is full.
absl::Status MakeRandomModel(const MakeModelOptions& options, const std::string& dir);

}  // namespace folio
