#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/packed_weights.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"
#include "engine/runtime/engine.h"
#include "engine/store/fingerprint.h"

namespace folio {

// The weights of a model: a checkpoint, which is packed while it is read, or what
// folio-make-model --quantise has packed.
class ModelWeights {
 public:
  // Checks everything that can be known without reading a matrix. Errors: those of WeightSource
  // and PackedWeights; INVALID_ARGUMENT where options ask for other numbers than a packed file has,
  // or the directory has both.
  static absl::StatusOr<ModelWeights> Open(const EngineOptions& options, const ModelConfig& config,
                                           const Backend& backend);

  const WeightPrecision& precision() const { return precision_; }
  // What becomes of the numbers of a quantised checkpoint, in words; else "".
  const std::string& conversion() const { return conversion_; }

  // `digests`, if there are some, get those of the checkpoint's tensors, wherever it is now.
  // Errors: those of LoadWeights and PackedWeights::Load.
  absl::StatusOr<Weights> Load(const ModelConfig& config, Backend* backend,
                               TensorDigests* digests) const;

 private:
  ModelWeights() = default;

  // One of both.
  std::unique_ptr<WeightSource> source_;
  std::optional<PackedWeights> packed_;
  WeightPrecision precision_;
  std::string conversion_;
};

}  // namespace folio
