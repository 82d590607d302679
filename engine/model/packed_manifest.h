#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_precision.h"
#include "engine/tensor/tensor_digest.h"

namespace folio {

// What a file of packed weights says of itself.
struct PackedManifest {
  std::string layout;        // Backend::packed_layout() of who packed the matrices
  std::string arrangement;   // ArrangementOf the model
  std::string weight_dtype;  // bf16, int8, ...; as ParseWeightPrecision reads it
  int weight_group = 0;      // of integers, else 0
  DType checkpoint_dtype = DType::kBf16;
  TensorDigestMap sources;  // the tensors of the checkpoint
  // Each part of so many bytes of a tensor of the file has a checksum (XXH3-64); by name.
  int64_t part_bytes = 0;
  std::map<std::string, std::vector<uint64_t>> checksums;

  std::string ToText() const;
  // Errors: INVALID_ARGUMENT names the field; UNIMPLEMENTED for another version.
  static absl::StatusOr<PackedManifest> FromText(const std::string& text);

  absl::StatusOr<WeightPrecision> Precision() const;
};

// How the engine's matrices are made of those of a checkpoint, as far as shapes do not tell:
// packed weights are good for a config.json that says the same.
std::string ArrangementOf(const ModelConfig& config);

}  // namespace folio
