#include "engine/model/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr char kPrefix[] = "synthetic:";
// Standard deviation of weights (initializer_range of the Llama models).
constexpr float kDeviation = 0.02f;

struct Shape {
  const char* name;
  int hidden_size;
  int intermediate_size;
  int num_layers;
  int num_heads;
  int num_kv_heads;
  int vocab_size;
  int trained_length;
  double rope_theta;
};
constexpr Shape kShapes[] = {
    {"llama-2-7b", 4096, 11008, 32, 32, 32, 32000, 4096, 10000},
    {"llama-3-8b", 4096, 14336, 32, 32, 8, 128256, 8192, 500000},
    // Made like a Llama, with one KV head.
    {"gemma-2b", 2048, 16384, 18, 8, 1, 256000, 8192, 10000},
    {"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 32000, 2048, 10000},
    {"tiny", 256, 688, 4, 8, 8, 512, 256, 10000},
};

// Makes matrices one after the other, each from a seed of its own.
class Maker {
 public:
  Maker(const ModelConfig& config, uint64_t seed, const WeightFormat& layers, Backend* backend)
      : shape_(config.shape), seed_(seed), layers_(layers), backend_(backend) {}

  absl::Status Matrix(int64_t outputs, int64_t inputs, float deviation, const WeightFormat& format,
                      std::unique_ptr<PackedMatrix>* matrix) {
    FOLIO_ASSIGN_OR_RETURN(*matrix,
                           backend_->PackRandom(outputs, inputs, ++seed_, deviation, format));
    return absl::OkStatus();
  }

  absl::Status Ones(NormWeights* norm) const {
    const std::vector<float> ones(shape_.hidden_size, 1.0f);
    FOLIO_ASSIGN_OR_RETURN(norm->weight, BufferOf<float>::CopyOf(backend_->memory(), ones));
    return absl::OkStatus();
  }

  absl::StatusOr<LayerWeights> Layer() {
    const int64_t hidden = shape_.hidden_size;
    const int64_t q_size = int64_t{shape_.num_heads} * shape_.head_dim;
    const int64_t kv_size = int64_t{shape_.num_kv_heads} * shape_.head_dim;
    // The residual stream keeps its size over the depth (Radford et al. 2019).
    const float residual = kDeviation / std::sqrt(2.0f * static_cast<float>(shape_.num_layers));
    LayerWeights layer;
    FOLIO_RETURN_IF_ERROR(Ones(&layer.attention_norm));
    FOLIO_RETURN_IF_ERROR(
        Matrix(q_size + 2 * kv_size, hidden, kDeviation, layers_, &layer.qkv.matrix));
    FOLIO_RETURN_IF_ERROR(Matrix(hidden, q_size, residual, layers_, &layer.output.matrix));
    FOLIO_RETURN_IF_ERROR(Ones(&layer.mlp_norm));
    FOLIO_RETURN_IF_ERROR(Matrix(2 * int64_t{shape_.intermediate_size}, hidden, kDeviation, layers_,
                                 &layer.up.matrix));
    FOLIO_RETURN_IF_ERROR(
        Matrix(hidden, shape_.intermediate_size, residual, layers_, &layer.down.matrix));
    return layer;
  }

 private:
  const ModelShape& shape_;
  uint64_t seed_;
  const WeightFormat layers_;
  Backend* const backend_;
};

}  // namespace

bool IsSynthetic(const std::string& model) { return absl::StartsWith(model, kPrefix); }

absl::StatusOr<ModelConfig> SyntheticConfig(const std::string& model) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(model.substr(std::size(kPrefix) - 1), absl::MaxSplits('/', 1));
  const auto& [name, layers] = parts;
  const Shape* shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                    [&](const Shape& one) { return parts.first == one.name; });
  if (shape == std::end(kShapes)) {
    const auto add_name = [](std::string* out, const Shape& one) { out->append(one.name); };
    return absl::InvalidArgumentError(
        absl::StrCat("there is no synthetic model '", name, "', but ",
                     absl::StrJoin(std::span<const Shape>(kShapes), ", ", add_name)));
  }
  int num_layers = shape->num_layers;
  if (absl::StrContains(model, '/') && (!absl::SimpleAtoi(layers, &num_layers) || num_layers < 1 ||
                                        num_layers > shape->num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", model, "': the number after / is one of layers, 1 to ", shape->num_layers));
  }
  FOLIO_ASSIGN_OR_RETURN(
      ModelConfig config,
      ParseModelConfig(absl::StrCat(
          R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu")",
          R"(, "hidden_size": )", shape->hidden_size, R"(, "intermediate_size": )",
          shape->intermediate_size, R"(, "num_hidden_layers": )", num_layers,
          R"(, "num_attention_heads": )", shape->num_heads, R"(, "num_key_value_heads": )",
          shape->num_kv_heads, R"(, "vocab_size": )", shape->vocab_size,
          R"(, "max_position_embeddings": )", shape->trained_length, R"(, "rope_theta": )",
          shape->rope_theta, R"(, "torch_dtype": "bfloat16"})")));
  config.synthetic = true;
  return config;
}

absl::StatusOr<Weights> SyntheticWeights(const ModelConfig& config, uint64_t seed,
                                         const WeightPrecision& precision, Backend* backend) {
  if (precision.dtype != DType::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a synthetic model has no ", DTypeName(precision.dtype),
                     " weights; take --weight-dtype auto, bf16, int8 or int4"));
  }
  Maker maker(config, seed, precision.layers, backend);
  Weights weights;
  const int64_t vocab = config.shape.vocab_size;
  const int64_t hidden = config.shape.hidden_size;
  FOLIO_RETURN_IF_ERROR(maker.Matrix(vocab, hidden, 1.0f, {}, &weights.embedding));
  for (int layer = 0; layer < config.shape.num_layers; ++layer) {
    FOLIO_ASSIGN_OR_RETURN(LayerWeights made, maker.Layer());
    weights.layers.push_back(std::move(made));
  }
  FOLIO_RETURN_IF_ERROR(maker.Ones(&weights.final_norm));
  FOLIO_RETURN_IF_ERROR(
      maker.Matrix(vocab, hidden, kDeviation, precision.head, &weights.lm_head.matrix));
  return weights;
}

}  // namespace folio
