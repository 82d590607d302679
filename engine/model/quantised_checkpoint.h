#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/quantization_config.h"
#include "engine/model/weight_source.h"

namespace folio {

// A Hugging Face directory whose matrices are those of GPTQ, AWQ or fp8. Matrices that are not
// quantised (the embedding, mostly the head) are read as they are. All matrices come as fp32.
class QuantisedCheckpoint final : public WeightSource {
 public:
  // REQUIRES: quantization.method is not kNone.
  QuantisedCheckpoint(Checkpoint checkpoint, const QuantizationConfig& quantization)
      : checkpoint_(std::move(checkpoint)), quantization_(quantization) {}

  absl::StatusOr<OwnedTensor> Tensor(const std::string& name,
                                     std::span<const int64_t> expected_shape) const override;
  absl::StatusOr<CheckpointNumbers> CheckAllTensors(const ModelConfig& config) const override;

 private:
  bool IsQuantised(const std::string& name) const;
  int64_t Groups(int64_t inputs) const;
  std::string Fp8Scales(const std::string& base) const;
  // For messages: "FILE: tensor "NAME"".
  std::string Place(const std::string& name) const;

  // Check the tensors that a matrix consists of. Errors: those of Checkpoint::Describe.
  absl::Status CheckParts(const std::string& name, std::span<const int64_t> shape) const;
  absl::Status CheckInt4(const std::string& base, int64_t outputs, int64_t inputs) const;
  absl::Status CheckFp8(const std::string& base, int64_t outputs, int64_t inputs) const;

  // REQUIRES: the check.
  absl::StatusOr<OwnedTensor> ReadInt4(const std::string& base, const TensorView& shape) const;
  absl::StatusOr<OwnedTensor> ReadFp8(const std::string& base, const TensorView& shape) const;
  absl::StatusOr<std::vector<uint32_t>> Words(const std::string& name) const;
  absl::StatusOr<std::vector<float>> Floats(const std::string& name) const;
  // Errors: INVALID_ARGUMENT for a group that there is not.
  absl::StatusOr<std::vector<int32_t>> GroupOfInputs(const std::string& base, int64_t inputs) const;
  // Inputs next to each other that share a scale; one that is all of a row is as long as any unit
  // of a backend's.
  int64_t ScaleGroup(int64_t inputs) const;
  // Whether a matrix of GPTQ or AWQ is integers from -8 to 7 times scales of such groups. What the
  // config says of that ("sym", "desc_act", "zero_point") is not asked: files say it and are not
  // so.
  absl::StatusOr<bool> IsIntegersTimesScales(const std::string& base, int64_t inputs) const;

  const Checkpoint checkpoint_;
  const QuantizationConfig quantization_;
};

}  // namespace folio
