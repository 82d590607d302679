#include "engine/model/llama_tensors.h"

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

void AppendLayer(const ModelConfig& config, int layer, std::vector<TensorSpec>* specs) {
  const int64_t hidden = config.shape.hidden_size;
  const int64_t intermediate = config.shape.intermediate_size;
  const int64_t q_size = int64_t{config.shape.num_heads} * config.shape.head_dim;
  const int64_t kv_size = int64_t{config.shape.num_kv_heads} * config.shape.head_dim;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");

  const auto norm = [&](const char* name) {
    specs->push_back({absl::StrCat(prefix, name, ".weight"), {hidden}, TensorRole::kNorm});
  };
  const auto linear = [&](const char* name, int64_t out, int64_t in, TensorRole role, bool bias) {
    specs->push_back({absl::StrCat(prefix, name, ".weight"), {out, in}, role});
    if (bias) specs->push_back({absl::StrCat(prefix, name, ".bias"), {out}, TensorRole::kBias});
  };
  const bool bias = config.attention_bias;
  norm("input_layernorm");
  linear("self_attn.q_proj", q_size, hidden, TensorRole::kProjection, bias);
  linear("self_attn.k_proj", kv_size, hidden, TensorRole::kProjection, bias);
  linear("self_attn.v_proj", kv_size, hidden, TensorRole::kProjection, bias);
  linear("self_attn.o_proj", hidden, q_size, TensorRole::kResidualProjection, bias);
  norm("post_attention_layernorm");
  linear("mlp.gate_proj", intermediate, hidden, TensorRole::kProjection, false);
  linear("mlp.up_proj", intermediate, hidden, TensorRole::kProjection, false);
  linear("mlp.down_proj", hidden, intermediate, TensorRole::kResidualProjection, false);
}

}  // namespace

std::vector<TensorSpec> LlamaTensors(const ModelConfig& config) {
  const int64_t hidden = config.shape.hidden_size;
  const int64_t vocab = config.shape.vocab_size;
  std::vector<TensorSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {vocab, hidden}, TensorRole::kEmbedding});
  for (int layer = 0; layer < config.shape.num_layers; ++layer) AppendLayer(config, layer, &specs);
  specs.push_back({"model.norm.weight", {hidden}, TensorRole::kNorm});
  if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {vocab, hidden}, TensorRole::kEmbedding});
  }
  return specs;
}

}  // namespace folio
