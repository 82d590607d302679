#include "engine/runtime/model_weights.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// What options leave open is as the file has it.
absl::Status CheckAsked(const EngineOptions& options, const PackedWeights& packed,
                        const WeightPrecision& has) {
  const PackedManifest& manifest = packed.manifest();
  FOLIO_RETURN_IF_ERROR(
      ParseWeightPrecision(options.weight_dtype, options.weight_group, manifest.checkpoint_dtype)
          .status());
  const bool dtype_fits =
      options.weight_dtype == "auto" || options.weight_dtype == manifest.weight_dtype;
  const bool group_fits =
      options.weight_group == 0 || !has.integers() || options.weight_group == manifest.weight_group;
  if (dtype_fits && group_fits) return absl::OkStatus();
  const std::string asked = dtype_fits
                                ? absl::StrCat("weight_group is ", options.weight_group)
                                : absl::StrCat("weight_dtype is '", options.weight_dtype, "'");
  return absl::InvalidArgumentError(absl::StrCat(
      asked, ", but ", packed.path(), " holds ", has.name(),
      " weights; leave it out, or give --model the checkpoint that the file was made of"));
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::Open(const EngineOptions& options,
                                                const ModelConfig& config) {
  ModelWeights weights;
  const std::string& dir = options.model_dir;
  if (!HasPackedWeights(dir)) {
    FOLIO_ASSIGN_OR_RETURN(weights.checkpoint_, Checkpoint::Open(dir));
    FOLIO_ASSIGN_OR_RETURN(const DType dtype, weights.checkpoint_->CheckAllTensors(config));
    FOLIO_ASSIGN_OR_RETURN(weights.precision_,
                           ParseWeightPrecision(options.weight_dtype, options.weight_group, dtype));
    return weights;
  }
  if (Checkpoint::Open(dir).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(dir, " has a checkpoint and ", kPackedFile,
                                                   "; keep them in directories of their own"));
  }
  FOLIO_ASSIGN_OR_RETURN(weights.packed_, PackedWeights::Open(dir));
  FOLIO_ASSIGN_OR_RETURN(weights.precision_, weights.packed_->manifest().Precision());
  FOLIO_RETURN_IF_ERROR(CheckAsked(options, *weights.packed_, weights.precision_));
  FOLIO_RETURN_IF_ERROR(weights.packed_->Check(config));
  return weights;
}

absl::StatusOr<Weights> ModelWeights::Load(const ModelConfig& config, Backend* backend,
                                           TensorDigests* digests) const {
  if (packed_) {
    if (digests != nullptr) digests->Set(packed_->manifest().sources);
    return packed_->Load(config, backend);
  }
  TensorObserver observer;
  if (digests != nullptr) {
    observer = [digests](const std::string& name, const TensorView& tensor) {
      digests->Add(name, tensor);
    };
  }
  return LoadWeights(config, *checkpoint_, precision_, backend, observer);
}

}  // namespace folio
