#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/weight_precision.h"
#include "engine/model/weights.h"

namespace folio {

// A matrix or a vector of Weights: where it is, and what it must be.
struct WeightPart {
  std::string name;  // "layers.0.qkv.weight"; none is called like a tensor of a checkpoint
  int64_t rows = 0;  // of a vector: its size
  int64_t cols = 0;
  WeightFormat format;
  // One of both.
  std::unique_ptr<PackedMatrix>* matrix = nullptr;
  BufferOf<float>* vector = nullptr;
};

// Everything that the weights of a model of this configuration hold, in the order in which it is
// used. `weights` gets its layers if it has none yet; the parts point into it.
std::vector<WeightPart> PartsOf(const ModelConfig& config, const WeightPrecision& precision,
                                Weights* weights);

}  // namespace folio
