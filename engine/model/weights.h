#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"

namespace folio {

// Weights of one decoder layer. Matrices are [outputs, inputs] in the checkpoint's dtype.
struct LayerWeights {
  std::vector<float> attention_norm;      // [hidden]
  std::unique_ptr<PackedMatrix> qkv;      // [(heads + 2 kv_heads) * head_dim, hidden]
  std::vector<float> qkv_bias;            // may be empty
  std::unique_ptr<PackedMatrix> output;   // [hidden, heads * head_dim]
  std::vector<float> output_bias;         // may be empty
  std::vector<float> mlp_norm;            // [hidden]
  std::unique_ptr<PackedMatrix> gate_up;  // [2 * intermediate, hidden], gate first
  std::unique_ptr<PackedMatrix> down;     // [hidden, intermediate]
};

// All weights of a Llama-family model, held once, in a backend's layout. Const after loading.
struct Weights {
  std::unique_ptr<PackedMatrix> embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;          // [hidden]
  std::unique_ptr<PackedMatrix> lm_head;  // [vocab, hidden]; null if tied to the embedding

  const PackedMatrix& head() const { return lm_head ? *lm_head : *embedding; }
  int64_t bytes() const;
};

// Packs every tensor and gives the mapped pages back, so that memory never holds the model twice.
// Errors: of the checkpoint and the backend.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                    Backend* backend);

}  // namespace folio
