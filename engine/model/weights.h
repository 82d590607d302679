#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_precision.h"
#include "engine/model/weight_source.h"

namespace folio {

struct NormWeights {
  BufferOf<float> weight;  // [hidden]
  BufferOf<float> bias;    // [hidden], may be empty
};

struct LinearWeights {
  std::unique_ptr<PackedMatrix> matrix;  // [outputs, inputs]
  BufferOf<float> bias;                  // [outputs], may be empty
};

// One MLP of a mixture; shapes as those of a layer.
struct ExpertWeights {
  LinearWeights up;
  LinearWeights down;
};

// Weights of one decoder layer. The elements of every head of q, k, v and of the output's inputs
// are in the engine's order: pair m of the rotary embedding is (m, m + head_dim / 2), pairs that
// are not rotated come last.
struct LayerWeights {
  NormWeights attention_norm;
  LinearWeights qkv;                // [(heads + 2 kv_heads) * head_dim, hidden]
  BufferOf<float> q_norm;           // [head_dim], empty where heads have no norms
  BufferOf<float> k_norm;           // [head_dim]
  LinearWeights output;             // [hidden, heads * head_dim]
  NormWeights attention_post_norm;  // empty without post_norms
  NormWeights mlp_post_norm;
  NormWeights mlp_norm;  // empty where the MLP shares the attention's norm
  LinearWeights up;    // gated: [2 * intermediate, hidden], gate first; else [intermediate, hidden]
  LinearWeights down;  // [hidden, intermediate]
  // Of a mixture of experts, instead of up and down.
  std::unique_ptr<PackedMatrix> router;  // [experts, hidden]
  std::vector<ExpertWeights> experts;
};

// All weights of a model, held once, in a backend's layout. Const after loading.
struct Weights {
  std::unique_ptr<PackedMatrix> embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  LinearWeights lm_head;  // [vocab, hidden]; without a matrix if tied to the embedding

  const PackedMatrix& head() const { return lm_head.matrix ? *lm_head.matrix : *embedding; }
  int64_t bytes() const;
  int64_t num_parameters() const;
};

// Sees a tensor of the checkpoint as it was read, by its name there.
using TensorObserver = std::function<void(const std::string& name, const TensorView& tensor)>;

// Reads and packs one matrix after the other, so that memory never holds the model twice. Every
// tensor that is read is shown to `observer`, if there is one; a fused one may be shown several
// times. Errors: of the source and the backend.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const WeightSource& source,
                                    const WeightPrecision& precision, Backend* backend,
                                    const TensorObserver& observer = nullptr);

}  // namespace folio
