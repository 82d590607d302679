#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace folio {

enum class TensorRole : uint8_t {
  kEmbedding,
  kHead,
  kNorm,
  kProjection,
  kResidualProjection,
  kRouter,
  kBias
};

// One tensor of a checkpoint under its Hugging Face name. Linear weights are [out, in].
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kProjection;
};

// Name of the projection that makes keys, inside a layer; null if q, k and v are one tensor.
const char* KeyTensor(const ModelConfig& config);

// Every tensor that a checkpoint of this configuration must have, in layer order.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config);

}  // namespace folio
