#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"

namespace folio {

// Models without files: the shape of a known one, with random weights that the backend makes
// itself. They say nothing, but cost what the real one costs: speed can be measured without 13 GB
// of files.

// "synthetic:llama-2-7b"; "synthetic:llama-2-7b/2" has two of its layers.
bool IsSynthetic(const std::string& model);

// Errors: INVALID_ARGUMENT with the names there are, or for a number of layers outside 1 .. the
// model's.
absl::StatusOr<ModelConfig> SyntheticConfig(const std::string& model);

// The same numbers on every backend. Errors: INVALID_ARGUMENT where
// `precision` is neither bf16 nor integers, and those of the backend.
absl::StatusOr<Weights> SyntheticWeights(const ModelConfig& config, uint64_t seed,
                                         const WeightPrecision& precision, Backend* backend);

}  // namespace folio
