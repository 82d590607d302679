#include "engine/model/weight_parts.h"

#include "absl/strings/str_cat.h"
#include "engine/model/family.h"

namespace folio {
namespace {

class Lister {
 public:
  Lister(const ModelConfig& config, const WeightPrecision& precision)
      : config_(config), precision_(precision) {}

  void Matrix(const std::string& name, int64_t rows, int64_t cols, const WeightFormat& format,
              std::unique_ptr<PackedMatrix>* matrix) {
    parts.push_back({name + ".weight", rows, cols, format, matrix, nullptr});
  }

  void Vector(const std::string& name, int64_t size, BufferOf<float>* vector) {
    parts.push_back({name, size, 0, {}, nullptr, vector});
  }

  void Linear(const std::string& name, int64_t rows, int64_t cols, const WeightFormat& format,
              bool bias, LinearWeights* weights) {
    Matrix(name, rows, cols, format, &weights->matrix);
    if (bias) Vector(name + ".bias", rows, &weights->bias);
  }

  void Norm(const std::string& name, NormWeights* norm) {
    Vector(name + ".weight", config_.shape.hidden_size, &norm->weight);
    if (config_.style.norm_bias) Vector(name + ".bias", config_.shape.hidden_size, &norm->bias);
  }

  void Mlp(const std::string& prefix, LinearWeights* up, LinearWeights* down) {
    const int64_t hidden = config_.shape.hidden_size;
    const int64_t ffn = config_.shape.intermediate_size;
    const DecoderStyle& style = config_.style;
    Linear(prefix + "up", style.gated() ? 2 * ffn : ffn, hidden, precision_.layers, style.mlp_bias,
           up);
    Linear(prefix + "down", hidden, ffn, precision_.layers, style.mlp_bias, down);
  }

  void Layer(const std::string& prefix, LayerWeights* w) {
    const ModelShape& shape = config_.shape;
    const DecoderStyle& style = config_.style;
    const TensorNames& names = FindFamily(config_.architecture)->tensors;
    const int64_t hidden = shape.hidden_size;
    const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim;
    const int64_t kv_size = int64_t{shape.num_kv_heads} * shape.head_dim;
    const WeightFormat& format = precision_.layers;
    Norm(prefix + "attention_norm", &w->attention_norm);
    Linear(prefix + "qkv", q_size + 2 * kv_size, hidden, format, style.qkv_bias, &w->qkv);
    if (style.head_norms) {
      Vector(prefix + "q_norm.weight", shape.head_dim, &w->q_norm);
      Vector(prefix + "k_norm.weight", shape.head_dim, &w->k_norm);
    }
    Linear(prefix + "output", hidden, q_size, format, style.output_bias, &w->output);
    if (names.mlp_norm != nullptr) Norm(prefix + "mlp_norm", &w->mlp_norm);
    if (style.post_norms) {
      Norm(prefix + "attention_post_norm", &w->attention_post_norm);
      Norm(prefix + "mlp_post_norm", &w->mlp_post_norm);
    }
    if (shape.num_experts == 0) return Mlp(prefix, &w->up, &w->down);
    Matrix(prefix + "router", shape.num_experts, hidden, {}, &w->router);
    w->experts.resize(shape.num_experts);
    for (int expert = 0; expert < shape.num_experts; ++expert) {
      ExpertWeights& to = w->experts[expert];
      Mlp(absl::StrCat(prefix, "experts.", expert, "."), &to.up, &to.down);
    }
  }

  std::vector<WeightPart> parts;

 private:
  const ModelConfig& config_;
  const WeightPrecision& precision_;
};

}  // namespace

std::vector<WeightPart> PartsOf(const ModelConfig& config, const WeightPrecision& precision,
                                Weights* weights) {
  const int64_t vocab = config.shape.vocab_size;
  const int64_t hidden = config.shape.hidden_size;
  Lister lister(config, precision);
  lister.Matrix("embedding", vocab, hidden, {}, &weights->embedding);
  weights->layers.resize(config.shape.num_layers);
  for (int layer = 0; layer < config.shape.num_layers; ++layer) {
    lister.Layer(absl::StrCat("layers.", layer, "."), &weights->layers[layer]);
  }
  lister.Norm("final_norm", &weights->final_norm);
  if (!config.tie_word_embeddings) {
    lister.Linear("head", vocab, hidden, precision.head, config.style.head_bias, &weights->lm_head);
  }
  return std::move(lister.parts);
}

}  // namespace folio
