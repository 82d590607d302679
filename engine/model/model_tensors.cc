#include "engine/model/model_tensors.h"

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : config_(config), style_(config.style) {}

  void Norm(const std::string& name) {
    const int64_t hidden = config_.shape.hidden_size;
    specs.push_back({absl::StrCat(name, ".weight"), {hidden}, TensorRole::kNorm});
    if (style_.norm_bias) {
      specs.push_back({absl::StrCat(name, ".bias"), {hidden}, TensorRole::kBias});
    }
  }

  void Linear(const std::string& name, int64_t out, int64_t in, TensorRole role, bool bias) {
    specs.push_back({absl::StrCat(name, ".weight"), {out, in}, role});
    if (bias) specs.push_back({absl::StrCat(name, ".bias"), {out}, TensorRole::kBias});
  }

  void Mlp(const std::string& prefix, const TensorNames& names) {
    const int64_t hidden = config_.shape.hidden_size;
    const int64_t ffn = config_.shape.intermediate_size;
    const bool bias = style_.mlp_bias;
    if (names.gate != nullptr) {
      Linear(prefix + names.gate, ffn, hidden, TensorRole::kProjection, bias);
    }
    Linear(prefix + names.up, style_.fused_gate ? 2 * ffn : ffn, hidden, TensorRole::kProjection,
           bias);
    Linear(prefix + names.down, hidden, ffn, TensorRole::kResidualProjection, bias);
  }

  void Layer(const TensorNames& names, int layer) {
    const ModelShape& shape = config_.shape;
    const int64_t hidden = shape.hidden_size;
    const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim;
    const int64_t kv_size = int64_t{shape.num_kv_heads} * shape.head_dim;
    const std::string prefix = absl::StrCat(names.layers, ".", layer, ".");
    const auto projection = TensorRole::kProjection;
    Norm(prefix + names.attention_norm);
    if (names.qkv != nullptr) {
      Linear(prefix + names.qkv, q_size + 2 * kv_size, hidden, projection, style_.qkv_bias);
    } else {
      Linear(prefix + names.q, q_size, hidden, projection, style_.qkv_bias);
      Linear(prefix + KeyTensor(config_), kv_size, hidden, projection, style_.qkv_bias);
      Linear(prefix + names.v, kv_size, hidden, projection, style_.qkv_bias);
    }
    if (style_.head_norms) {
      for (const char* norm : {names.q_norm, names.k_norm}) {
        specs.push_back(
            {absl::StrCat(prefix, norm, ".weight"), {shape.head_dim}, TensorRole::kNorm});
      }
    }
    Linear(prefix + names.output, hidden, q_size, TensorRole::kResidualProjection,
           style_.output_bias);
    for (const char* norm : {names.attention_post_norm, names.mlp_norm, names.mlp_post_norm}) {
      if (norm != nullptr) Norm(prefix + norm);
    }
    if (shape.num_experts == 0) return Mlp(prefix, names);
    Linear(prefix + names.router, shape.num_experts, hidden, TensorRole::kRouter, false);
    for (int expert = 0; expert < shape.num_experts; ++expert) {
      Mlp(absl::StrCat(prefix, names.experts, ".", expert, "."), names);
    }
  }

  std::vector<TensorSpec> specs;

 private:
  const ModelConfig& config_;
  const DecoderStyle& style_;
};

}  // namespace

const char* KeyTensor(const ModelConfig& config) {
  const TensorNames& names = FindFamily(config.architecture)->tensors;
  return config.coca_query == CocaQuery::kNone ? names.k : names.t;
}

std::vector<TensorSpec> ModelTensors(const ModelConfig& config) {
  const int64_t hidden = config.shape.hidden_size;
  const int64_t vocab = config.shape.vocab_size;
  const TensorNames& names = FindFamily(config.architecture)->tensors;
  Lister lister(config);
  lister.Linear(names.embedding, vocab, hidden, TensorRole::kEmbedding, false);
  for (int layer = 0; layer < config.shape.num_layers; ++layer) lister.Layer(names, layer);
  lister.Norm(names.final_norm);
  if (!config.tie_word_embeddings) {
    lister.Linear(names.head, vocab, hidden, TensorRole::kHead, config.style.head_bias);
  }
  return std::move(lister.specs);
}

}  // namespace folio
