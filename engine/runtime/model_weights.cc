#include "engine/runtime/model_weights.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/checkpoint.h"

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

std::string Conversion(const CheckpointNumbers& from, const WeightPrecision& to) {
  if (from.name.empty()) return "";
  if (!to.integers()) return absl::StrCat(from.name, ", dequantised to ", to.name());
  const bool narrower = from.nearest.codec == WeightFormat::Codec::kInt8 &&
                        to.layers.codec == WeightFormat::Codec::kInt4;
  if (from.scale_group > 0 && from.scale_group % to.layers.group == 0 && !narrower) {
    return absl::StrCat(from.name, ", layers kept as ", to.name(),
                        from.fp16_scales ? ", lossless" : ", scales rounded to fp16");
  }
  return absl::StrCat(from.name, ", dequantised and quantised again to the nearest ", to.name());
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::Open(const EngineOptions& options,
                                                const ModelConfig& config, const Backend& backend) {
  ModelWeights weights;
  const std::string& dir = options.model_dir;
  if (!HasPackedWeights(dir)) {
    FOLIO_ASSIGN_OR_RETURN(weights.source_, OpenWeightSource(dir, config));
    FOLIO_ASSIGN_OR_RETURN(const CheckpointNumbers numbers,
                           weights.source_->CheckAllTensors(config));
    FOLIO_ASSIGN_OR_RETURN(
        weights.precision_,
        ParseWeightPrecision(options.weight_dtype, options.weight_group, numbers.dtype,
                             backend.packs_integers() ? numbers.nearest : WeightFormat{}));
    weights.conversion_ = Conversion(numbers, weights.precision_);
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
  return LoadWeights(config, *source_, precision_, backend, observer);
}

}  // namespace folio
