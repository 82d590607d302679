#include "engine/model/weights.h"

#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/half.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

using Shape = std::vector<int64_t>;

// Reads tensors of one checkpoint for one backend.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, Backend* backend)
      : checkpoint_(checkpoint), backend_(backend) {}

  struct Part {
    std::string name;
    Shape shape;
  };

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Matrix(const std::vector<Part>& parts) const {
    std::vector<TensorView> views;
    for (const Part& part : parts) {
      FOLIO_ASSIGN_OR_RETURN(TensorView view, checkpoint_.Tensor(part.name, part.shape));
      views.push_back(view);
    }
    auto matrix = backend_->Pack(views);
    for (const Part& part : parts) FOLIO_RETURN_IF_ERROR(checkpoint_.ReleasePages(part.name));
    return matrix;
  }

  // Appends a tensor of one dimension as fp32.
  absl::Status Vector(const std::string& name, int64_t size, std::vector<float>* out) const {
    FOLIO_ASSIGN_OR_RETURN(TensorView view, checkpoint_.Tensor(name, Shape{size}));
    const size_t begin = out->size();
    out->resize(begin + size);
    for (int64_t i = 0; i < size; ++i) (*out)[begin + i] = Element(view, i);
    return absl::OkStatus();
  }

 private:
  static float Element(const TensorView& view, int64_t i) {
    const std::byte* at = static_cast<const std::byte*>(view.data) + i * DTypeBytes(view.dtype);
    if (view.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return view.dtype == DType::kBf16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
  }

  const Checkpoint& checkpoint_;
  Backend* const backend_;
};

absl::StatusOr<LayerWeights> LoadLayer(const ModelConfig& config, int layer, const Loader& loader) {
  const ModelShape& s = config.shape;
  const int64_t hidden = s.hidden_size;
  const int64_t q = int64_t{s.num_heads} * s.head_dim;
  const int64_t kv = int64_t{s.num_kv_heads} * s.head_dim;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attn = prefix + "self_attn.";
  LayerWeights w;
  FOLIO_RETURN_IF_ERROR(
      loader.Vector(prefix + "input_layernorm.weight", hidden, &w.attention_norm));
  FOLIO_RETURN_IF_ERROR(
      loader.Vector(prefix + "post_attention_layernorm.weight", hidden, &w.mlp_norm));
  FOLIO_ASSIGN_OR_RETURN(w.qkv, loader.Matrix({{attn + "q_proj.weight", {q, hidden}},
                                               {attn + "k_proj.weight", {kv, hidden}},
                                               {attn + "v_proj.weight", {kv, hidden}}}));
  FOLIO_ASSIGN_OR_RETURN(w.output, loader.Matrix({{attn + "o_proj.weight", {hidden, q}}}));
  if (config.attention_bias) {
    FOLIO_RETURN_IF_ERROR(loader.Vector(attn + "q_proj.bias", q, &w.qkv_bias));
    FOLIO_RETURN_IF_ERROR(loader.Vector(attn + "k_proj.bias", kv, &w.qkv_bias));
    FOLIO_RETURN_IF_ERROR(loader.Vector(attn + "v_proj.bias", kv, &w.qkv_bias));
    FOLIO_RETURN_IF_ERROR(loader.Vector(attn + "o_proj.bias", hidden, &w.output_bias));
  }
  const int64_t ffn = s.intermediate_size;
  FOLIO_ASSIGN_OR_RETURN(w.gate_up,
                         loader.Matrix({{prefix + "mlp.gate_proj.weight", {ffn, hidden}},
                                        {prefix + "mlp.up_proj.weight", {ffn, hidden}}}));
  FOLIO_ASSIGN_OR_RETURN(w.down, loader.Matrix({{prefix + "mlp.down_proj.weight", {hidden, ffn}}}));
  return w;
}

}  // namespace

int64_t Weights::bytes() const {
  int64_t total = embedding->bytes() + (lm_head ? lm_head->bytes() : 0);
  for (const LayerWeights& w : layers) {
    total += w.qkv->bytes() + w.output->bytes() + w.gate_up->bytes() + w.down->bytes();
  }
  return total;
}

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                    Backend* backend) {
  FOLIO_RETURN_IF_ERROR(checkpoint.CheckAllLlamaTensors(config).status());
  const Loader loader(checkpoint, backend);
  const Shape table = {config.shape.vocab_size, config.shape.hidden_size};
  Weights weights;
  FOLIO_ASSIGN_OR_RETURN(weights.embedding, loader.Matrix({{"model.embed_tokens.weight", table}}));
  for (int layer = 0; layer < config.shape.num_layers; ++layer) {
    FOLIO_ASSIGN_OR_RETURN(LayerWeights w, LoadLayer(config, layer, loader));
    weights.layers.push_back(std::move(w));
  }
  FOLIO_RETURN_IF_ERROR(
      loader.Vector("model.norm.weight", config.shape.hidden_size, &weights.final_norm));
  if (!config.tie_word_embeddings) {
    FOLIO_ASSIGN_OR_RETURN(weights.lm_head, loader.Matrix({{"lm_head.weight", table}}));
  }
  return weights;
}

}  // namespace folio
