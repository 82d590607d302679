#pragma once

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/packed_weights.h"
#include "engine/model/weights.h"
#include "engine/runtime/engine.h"
#include "engine/store/fingerprint.h"

namespace folio {

// The weights of a model directory: a checkpoint, which is packed while it is read, or what
// folio-make-model --quantise has packed.
class ModelWeights {
 public:
  // Checks everything that can be known without reading a matrix. Errors: those of Checkpoint and
  // PackedWeights; INVALID_ARGUMENT where options ask for other numbers than a packed file has, or
  // the directory has both.
  static absl::StatusOr<ModelWeights> Open(const EngineOptions& options, const ModelConfig& config);

  const WeightPrecision& precision() const { return precision_; }

  // `digests`, if there are some, get those of the checkpoint's tensors, wherever it is now.
  // Errors: those of LoadWeights and PackedWeights::Load.
  absl::StatusOr<Weights> Load(const ModelConfig& config, Backend* backend,
                               TensorDigests* digests) const;

 private:
  ModelWeights() = default;

  // One of both.
  std::optional<Checkpoint> checkpoint_;
  std::optional<PackedWeights> packed_;
  WeightPrecision precision_;
};

}  // namespace folio
