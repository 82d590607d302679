#include "engine/model/weight_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/checkpoint.h"
#include "engine/model/gguf_checkpoint.h"
#include "engine/model/gguf_file.h"
#include "engine/model/quantised_checkpoint.h"
#include "engine/model/quantization_config.h"

namespace folio {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightSource(const std::string& path,
                                                               const ModelConfig& config) {
  if (IsModelFile(path)) {
    FOLIO_ASSIGN_OR_RETURN(GgufCheckpoint file, GgufCheckpoint::Open(path, config));
    return std::make_unique<GgufCheckpoint>(std::move(file));
  }
  FOLIO_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  FOLIO_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(absl::StrCat(path, "/config.json"), kMaxConfigBytes));
  FOLIO_ASSIGN_OR_RETURN(const QuantizationConfig quantization, ParseQuantization(text));
  if (quantization.method != QuantizationConfig::Method::kNone) {
    return std::make_unique<QuantisedCheckpoint>(std::move(checkpoint), quantization);
  }
  return std::make_unique<Checkpoint>(std::move(checkpoint));
}

}  // namespace folio
