#include "engine/model/weight_source.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/model/checkpoint.h"
#include "engine/model/gguf_checkpoint.h"
#include "engine/model/gguf_file.h"

namespace folio {

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightSource(const std::string& path,
                                                               const ModelConfig& config) {
  if (IsModelFile(path)) {
    FOLIO_ASSIGN_OR_RETURN(GgufCheckpoint file, GgufCheckpoint::Open(path, config));
    return std::make_unique<GgufCheckpoint>(std::move(file));
  }
  FOLIO_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  return std::make_unique<Checkpoint>(std::move(checkpoint));
}

}  // namespace folio
