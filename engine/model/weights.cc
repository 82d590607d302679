#include "engine/model/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/half.h"
#include "engine/base/status_macros.h"
#include "engine/model/head_order.h"
#include "engine/model/model_tensors.h"

namespace folio {
namespace {

using Shape = std::vector<int64_t>;
using QkvLayout = DecoderStyle::QkvLayout;

float Element(const TensorView& view, int64_t i) {
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

// REQUIRES: `dtype` is fp32 or bf16.
OwnedTensor Converted(const TensorView& from, DType dtype) {
  TensorView like = from;
  like.dtype = dtype;
  OwnedTensor to = OwnedTensor::Like(like);
  for (int64_t i = 0; i < from.num_elements(); ++i) {
    const float value = Element(from, i);
    const uint16_t half = FloatToBf16(value);
    std::byte* const at = to.data.get() + i * DTypeBytes(dtype);
    std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
                DTypeBytes(dtype));
  }
  return to;
}

std::vector<const PackedMatrix*> MatricesOf(const LayerWeights& w) {
  std::vector<const PackedMatrix*> matrices = {w.qkv.matrix.get(), w.output.matrix.get()};
  if (w.experts.empty()) {
    matrices.insert(matrices.end(), {w.up.matrix.get(), w.down.matrix.get()});
    return matrices;
  }
  matrices.push_back(w.router.get());
  for (const ExpertWeights& expert : w.experts) {
    matrices.insert(matrices.end(), {expert.up.matrix.get(), expert.down.matrix.get()});
  }
  return matrices;
}

// Reads the tensors of one source for one backend.
class Loader {
 public:
  Loader(const ModelConfig& config, const WeightSource& source, const WeightPrecision& precision,
         Backend* backend, const TensorObserver& observer)
      : config_(config),
        shape_(config.shape),
        names_(FindFamily(config.architecture)->tensors),
        source_(source),
        precision_(precision),
        backend_(backend),
        observer_(observer),
        head_order_(HeadOrder(shape_.head_dim, config.rope.rotary_dim, config.style.rotary_pairs)) {
  }

  absl::StatusOr<Weights> Load() const;

 private:
  struct Part {
    std::string name;
    int64_t outputs = 0;
  };

  absl::StatusOr<OwnedTensor> Read(const std::string& name, const Shape& shape) const {
    auto tensor = source_.Tensor(name, shape);
    if (tensor.ok() && observer_) observer_(name, tensor->view);
    return tensor;
  }

  // Integers are made of the checkpoint's own numbers, and of fp32 where parts differ.
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::vector<TensorView> parts,
                                                     const WeightFormat& format) const {
    DType dtype = precision_.dtype;
    if (format.codec != WeightFormat::Codec::kAsGiven) {
      const auto other = [&](const TensorView& part) { return part.dtype != parts[0].dtype; };
      dtype = std::any_of(parts.begin(), parts.end(), other) ? DType::kF32 : parts[0].dtype;
    }
    std::vector<OwnedTensor> converted;
    for (TensorView& part : parts) {
      if (part.dtype == dtype) continue;
      converted.push_back(Converted(part, dtype));
      part = converted.back().view;
    }
    return backend_->Pack(parts, format);
  }

  // The parts stacked by rows; with biases, if wanted.
  absl::StatusOr<LinearWeights> Linear(const std::vector<Part>& parts, int64_t inputs, bool bias,
                                       const WeightFormat& format) const {
    std::vector<OwnedTensor> tensors;
    std::vector<TensorView> views;
    LinearWeights weights;
    std::vector<float> biases;
    for (const Part& part : parts) {
      FOLIO_ASSIGN_OR_RETURN(OwnedTensor tensor,
                             Read(part.name + ".weight", Shape{part.outputs, inputs}));
      views.push_back(tensor.view);
      tensors.push_back(std::move(tensor));
      if (bias) FOLIO_RETURN_IF_ERROR(Append(part.name + ".bias", part.outputs, &biases));
    }
    FOLIO_ASSIGN_OR_RETURN(weights.matrix, Pack(std::move(views), format));
    FOLIO_ASSIGN_OR_RETURN(weights.bias, Upload(biases));
    return weights;
  }

  // Appends a tensor of one dimension as fp32.
  absl::Status Append(const std::string& name, int64_t size, std::vector<float>* out) const {
    FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor, Read(name, Shape{size}));
    for (int64_t i = 0; i < size; ++i) out->push_back(Element(tensor.view, i));
    return absl::OkStatus();
  }

  absl::StatusOr<BufferOf<float>> Upload(const std::vector<float>& values) const {
    return BufferOf<float>::CopyOf(backend_->memory(), values);
  }

  absl::StatusOr<BufferOf<float>> Vector(const std::string& name, int64_t size) const {
    std::vector<float> values;
    FOLIO_RETURN_IF_ERROR(Append(name, size, &values));
    return Upload(values);
  }

  absl::StatusOr<std::vector<float>> NormWeight(const std::string& name, int64_t size) const {
    std::vector<float> values;
    FOLIO_RETURN_IF_ERROR(Append(name + ".weight", size, &values));
    if (config_.style.weights_from_one) {
      for (float& value : values) value += 1.0f;
    }
    return values;
  }

  absl::StatusOr<NormWeights> Norm(const std::string& name) const {
    NormWeights norm;
    FOLIO_ASSIGN_OR_RETURN(const std::vector<float> weight, NormWeight(name, shape_.hidden_size));
    FOLIO_ASSIGN_OR_RETURN(norm.weight, Upload(weight));
    if (config_.style.norm_bias) {
      FOLIO_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", shape_.hidden_size));
    }
    return norm;
  }

  // Of a head, in the engine's order.
  absl::StatusOr<BufferOf<float>> HeadNorm(const std::string& name) const {
    FOLIO_ASSIGN_OR_RETURN(const std::vector<float> given, NormWeight(name, shape_.head_dim));
    std::vector<float> ordered;
    ordered.reserve(given.size());
    for (int e = 0; e < shape_.head_dim; ++e) ordered.push_back(given[OrderOf(e)]);
    return Upload(ordered);
  }

  absl::Status Mlp(const std::string& prefix, LinearWeights* up, LinearWeights* down) const;
  absl::StatusOr<LayerWeights> Layer(int layer) const;
  absl::StatusOr<LinearWeights> Qkv(const std::string& prefix) const;
  absl::StatusOr<LinearWeights> ReorderedQkv(const std::string& prefix) const;
  absl::StatusOr<LinearWeights> Output(const std::string& name) const;

  int64_t q_size() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
  int64_t kv_size() const { return int64_t{shape_.num_kv_heads} * shape_.head_dim; }
  int OrderOf(int element) const { return head_order_.empty() ? element : head_order_[element]; }

  const ModelConfig& config_;
  const ModelShape& shape_;
  const TensorNames& names_;
  const WeightSource& source_;
  const WeightPrecision& precision_;
  Backend* const backend_;
  const TensorObserver& observer_;
  const std::vector<int> head_order_;
};

absl::StatusOr<LinearWeights> Loader::Qkv(const std::string& prefix) const {
  const bool bias = config_.style.qkv_bias;
  const QkvLayout layout = config_.style.qkv_layout;
  if (!head_order_.empty() || layout == QkvLayout::kPerHead) return ReorderedQkv(prefix);
  if (layout == QkvLayout::kStacked) {
    return Linear({{prefix + names_.qkv, q_size() + 2 * kv_size()}}, shape_.hidden_size, bias,
                  precision_.layers);
  }
  return Linear({{prefix + names_.q, q_size()},
                 {prefix + KeyTensor(config_), kv_size()},
                 {prefix + names_.v, kv_size()}},
                shape_.hidden_size, bias, precision_.layers);
}

// Copies the rows into the engine's order: q of all heads, then k, then v, each head in HeadOrder.
absl::StatusOr<LinearWeights> Loader::ReorderedQkv(const std::string& prefix) const {
  const int64_t d = shape_.head_dim;
  const bool fused = names_.qkv != nullptr;
  std::vector<OwnedTensor> parts;
  std::vector<float> biases;
  LinearWeights weights;
  for (int which = 0; which < 3; ++which) {
    const char* separate[] = {names_.q, KeyTensor(config_), names_.v};
    const std::string name = prefix + (fused ? names_.qkv : separate[which]);
    const int64_t num_heads = which == 0 ? shape_.num_heads : shape_.num_kv_heads;
    const std::vector<int64_t> rows = QkvRows(shape_, config_.style, head_order_, which);
    const int64_t outputs = fused ? q_size() + 2 * kv_size() : num_heads * d;
    FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor,
                           Read(name + ".weight", Shape{outputs, int64_t{shape_.hidden_size}}));
    parts.push_back(TakeRows(tensor.view, rows));
    if (!config_.style.qkv_bias) continue;
    std::vector<float> bias;
    FOLIO_RETURN_IF_ERROR(Append(name + ".bias", outputs, &bias));
    for (const int64_t row : rows) biases.push_back(bias[row]);
  }
  const std::vector<TensorView> views = {parts[0].view, parts[1].view, parts[2].view};
  FOLIO_ASSIGN_OR_RETURN(weights.matrix, Pack(views, precision_.layers));
  FOLIO_ASSIGN_OR_RETURN(weights.bias, Upload(biases));
  return weights;
}

absl::StatusOr<LinearWeights> Loader::Output(const std::string& name) const {
  if (head_order_.empty()) {
    return Linear({{name, shape_.hidden_size}}, q_size(), config_.style.output_bias,
                  precision_.layers);
  }
  FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor,
                         Read(name + ".weight", Shape{int64_t{shape_.hidden_size}, q_size()}));
  std::vector<int64_t> columns;
  for (int64_t head = 0; head < shape_.num_heads; ++head) {
    for (int e = 0; e < shape_.head_dim; ++e)
      columns.push_back(head * shape_.head_dim + OrderOf(e));
  }
  const OwnedTensor reordered = TakeColumns(tensor.view, columns);
  LinearWeights weights;
  FOLIO_ASSIGN_OR_RETURN(weights.matrix, Pack({reordered.view}, precision_.layers));
  if (config_.style.output_bias) {
    FOLIO_ASSIGN_OR_RETURN(weights.bias, Vector(name + ".bias", shape_.hidden_size));
  }
  return weights;
}

absl::Status Loader::Mlp(const std::string& prefix, LinearWeights* up, LinearWeights* down) const {
  const int64_t hidden = shape_.hidden_size;
  const int64_t ffn = shape_.intermediate_size;
  const bool bias = config_.style.mlp_bias;
  std::vector<Part> parts;
  if (names_.gate != nullptr) parts.push_back({prefix + names_.gate, ffn});
  parts.push_back({prefix + names_.up, config_.style.fused_gate ? 2 * ffn : ffn});
  FOLIO_ASSIGN_OR_RETURN(*up, Linear(parts, hidden, bias, precision_.layers));
  FOLIO_ASSIGN_OR_RETURN(*down,
                         Linear({{prefix + names_.down, hidden}}, ffn, bias, precision_.layers));
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> Loader::Layer(int layer) const {
  const std::string prefix = absl::StrCat(names_.layers, ".", layer, ".");
  LayerWeights w;
  FOLIO_ASSIGN_OR_RETURN(w.attention_norm, Norm(prefix + names_.attention_norm));
  FOLIO_ASSIGN_OR_RETURN(w.qkv, Qkv(prefix));
  if (config_.style.head_norms) {
    FOLIO_ASSIGN_OR_RETURN(w.q_norm, HeadNorm(prefix + names_.q_norm));
    FOLIO_ASSIGN_OR_RETURN(w.k_norm, HeadNorm(prefix + names_.k_norm));
  }
  FOLIO_ASSIGN_OR_RETURN(w.output, Output(prefix + names_.output));
  if (names_.mlp_norm != nullptr) {
    FOLIO_ASSIGN_OR_RETURN(w.mlp_norm, Norm(prefix + names_.mlp_norm));
  }
  if (config_.style.post_norms) {
    FOLIO_ASSIGN_OR_RETURN(w.attention_post_norm, Norm(prefix + names_.attention_post_norm));
    FOLIO_ASSIGN_OR_RETURN(w.mlp_post_norm, Norm(prefix + names_.mlp_post_norm));
  }
  if (shape_.num_experts == 0) {
    FOLIO_RETURN_IF_ERROR(Mlp(prefix, &w.up, &w.down));
    return w;
  }
  FOLIO_ASSIGN_OR_RETURN(
      LinearWeights router,
      Linear({{prefix + names_.router, shape_.num_experts}}, shape_.hidden_size, false, {}));
  w.router = std::move(router.matrix);
  w.experts.resize(shape_.num_experts);
  for (int e = 0; e < shape_.num_experts; ++e) {
    FOLIO_RETURN_IF_ERROR(Mlp(absl::StrCat(prefix, names_.experts, ".", e, "."), &w.experts[e].up,
                              &w.experts[e].down));
  }
  return w;
}

absl::StatusOr<Weights> Loader::Load() const {
  const int64_t vocab = shape_.vocab_size;
  const int64_t hidden = shape_.hidden_size;
  Weights weights;
  FOLIO_ASSIGN_OR_RETURN(LinearWeights embedding,
                         Linear({{names_.embedding, vocab}}, hidden, false, {}));
  weights.embedding = std::move(embedding.matrix);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    FOLIO_ASSIGN_OR_RETURN(LayerWeights w, Layer(layer));
    weights.layers.push_back(std::move(w));
  }
  FOLIO_ASSIGN_OR_RETURN(weights.final_norm, Norm(names_.final_norm));
  if (!config_.tie_word_embeddings) {
    FOLIO_ASSIGN_OR_RETURN(weights.lm_head, Linear({{names_.head, vocab}}, hidden,
                                                   config_.style.head_bias, precision_.head));
  }
  return weights;
}

}  // namespace

int64_t Weights::bytes() const {
  int64_t total = embedding->bytes() + (lm_head.matrix ? lm_head.matrix->bytes() : 0);
  for (const LayerWeights& w : layers) {
    for (const PackedMatrix* matrix : MatricesOf(w)) total += matrix->bytes();
  }
  return total;
}

int64_t Weights::num_parameters() const {
  const auto of = [](const PackedMatrix& matrix) { return matrix.rows() * matrix.cols(); };
  const auto of_norm = [](const NormWeights& norm) {
    return norm.weight.size() + norm.bias.size();
  };
  int64_t count = of(*embedding) + lm_head.bias.size() + of_norm(final_norm);
  if (lm_head.matrix) count += of(*lm_head.matrix);
  for (const LayerWeights& w : layers) {
    for (const PackedMatrix* matrix : MatricesOf(w)) count += of(*matrix);
    count += w.qkv.bias.size() + w.output.bias.size() + w.up.bias.size() + w.down.bias.size();
    count += of_norm(w.attention_norm) + of_norm(w.mlp_norm) + w.q_norm.size() + w.k_norm.size();
    count += of_norm(w.attention_post_norm) + of_norm(w.mlp_post_norm);
  }
  return count;
}

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const WeightSource& source,
                                    const WeightPrecision& precision, Backend* backend,
                                    const TensorObserver& observer) {
  FOLIO_RETURN_IF_ERROR(source.CheckAllTensors(config).status());
  return Loader(config, source, precision, backend, observer).Load();
}

}  // namespace folio
