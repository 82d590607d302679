#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/tensor/owned_tensor.h"
#include "engine/tensor/weight_format.h"

namespace folio {

// In which numbers a checkpoint has its weights.
struct CheckpointNumbers {
  // Of matrices that are not to be integers, where nothing else is asked for.
  DType dtype = DType::kBf16;
  // Of a quantised checkpoint: the integers that lose least of the matrices inside its layers.
  WeightFormat nearest;
  // Of one whose every matrix inside the layers is integers times scales (TensorView::scales):
  // columns that share one; 0: not all are.
  int scale_group = 0;
  // Whether these scales are fp16 numbers, which a backend's integers have as they are.
  bool fp16_scales = false;
  // "GGUF matrices of Q4_K (193), Q6_K (33)"; "" of numbers that a backend has as they are.
  std::string name;
};

// Where the weights of a model come from: a reader of one format of files. Const members are safe
// for concurrent use.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Reads a tensor of fp32, fp16 or bf16 by its Hugging Face name; quantised ones as fp32.
  // Errors: NOT_FOUND; INVALID_ARGUMENT when its shape is not `expected_shape`; UNIMPLEMENTED for
  // numbers that are not read; DATA_LOSS names the first element that is infinite or NaN, or a
  // file that was cut since it was opened.
  virtual absl::StatusOr<OwnedTensor> Tensor(const std::string& name,
                                             std::span<const int64_t> expected_shape) const = 0;

  // Checks that every tensor of the architecture is there with the right shape and numbers that go
  // together. Call before anything is allocated. Errors: those of Tensor but for DATA_LOSS.
  virtual absl::StatusOr<CheckpointNumbers> CheckAllTensors(const ModelConfig& config) const = 0;
};

// The weights of the model at `path`, a Hugging Face directory or a GGUF file, which `config` was
// read from. Errors: those of the reader.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightSource(const std::string& path,
                                                               const ModelConfig& config);

}  // namespace folio
