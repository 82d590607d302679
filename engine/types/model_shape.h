#pragma once

#include <cstdint>

#include "engine/tensor/tensor_view.h"

namespace folio {

// The numbers of a decoder that attention, KV cache and kernels need.
struct ModelShape {
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  // Trained length in tokens (max_position_embeddings).
  int trained_length = 0;
  double norm_eps = 1e-5;
  // MLPs of a layer, of which a token goes through experts_per_token; 0: one, of all tokens.
  int num_experts = 0;
  int experts_per_token = 0;
  // A key is one number per rotated pair (CoCA).
  bool paired_keys = false;

  int group_size() const { return num_heads / num_kv_heads; }
};

}  // namespace folio
