#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/model/weights.h"
#include "engine/types/attention_plan.h"
#include "engine/types/model_shape.h"

namespace folio {

// The forward pass of a decoder over one step: rows of any number of sequences, each
// under its own attention plan. Owns its activations, sized once for the largest step. Engine
// thread only.
class Transformer {
 public:
  // Borrows weights and backend for its lifetime.
  Transformer(const ModelShape& shape, const DecoderStyle& style, const Weights& weights,
              Backend* backend, int max_step_rows, int max_logit_rows);

  // Runs `tokens` (one per row of `batch`) and stores their keys and values. Returns logits
  // [logit_rows.size(), vocab_size] of the given rows, valid until the next call. REQUIRES:
  // tokens.size() == batch.num_rows <= max_step_rows, logit_rows.size() <= max_logit_rows, every
  // token in the vocabulary, pages for every token of every slice.
  std::span<const float> Forward(const StepBatch& batch, std::span<const int32_t> tokens,
                                 std::span<const int> logit_rows);

  // Bytes of activations.
  int64_t workspace_bytes() const;

 private:
  // Normalises the hidden state.
  void Norm(const NormWeights& norm, int rows, float* out);
  void RunLayer(const StepBatch& batch, int layer);
  void RunMlp(const LayerWeights& weights, int rows);

  const ModelShape shape_;
  const DecoderStyle style_;
  const Weights& weights_;
  Backend* const backend_;
  std::vector<float> hidden_;     // [rows, hidden]
  std::vector<float> normed_;     // [rows, hidden]
  std::vector<float> qkv_;        // [rows, (heads + 2 kv_heads) * head_dim]
  std::vector<float> attention_;  // [rows, heads * head_dim]
  std::vector<float> up_;         // [rows, intermediate], SwiGLU: twice as wide, gate first
  std::vector<float> mlp_;        // [rows, intermediate], SwiGLU only
  std::vector<float> logits_;     // [logit rows, vocab]
};

}  // namespace folio
