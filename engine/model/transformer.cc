#include "engine/model/transformer.h"

#include <cstring>

namespace folio {

Transformer::Transformer(const ModelShape& shape, const Weights& weights, Backend* backend,
                         int max_step_rows, int max_logit_rows)
    : shape_(shape), weights_(weights), backend_(backend) {
  const size_t rows = max_step_rows;
  const size_t head_dim = shape.head_dim;
  hidden_.resize(rows * shape.hidden_size);
  normed_.resize(rows * shape.hidden_size);
  qkv_.resize(rows * (shape.num_heads + 2 * shape.num_kv_heads) * head_dim);
  attention_.resize(rows * shape.num_heads * head_dim);
  gate_up_.resize(rows * 2 * shape.intermediate_size);
  mlp_.resize(rows * shape.intermediate_size);
  logits_.resize(size_t(max_logit_rows) * shape.vocab_size);
}

std::span<const float> Transformer::Forward(const StepBatch& batch, std::span<const int32_t> tokens,
                                            std::span<const int> logit_rows) {
  backend_->Embed(*weights_.embedding, tokens, hidden_.data());
  for (int layer = 0; layer < shape_.num_layers; ++layer) RunLayer(batch, layer);
  if (logit_rows.empty()) return {};
  const size_t width = shape_.hidden_size;
  // Rows ascend, so compacting in place never overwrites a row that is still to be read.
  for (size_t i = 0; i < logit_rows.size(); ++i) {
    std::memmove(&hidden_[i * width], &hidden_[logit_rows[i] * width], width * sizeof(float));
  }
  const int num_rows = static_cast<int>(logit_rows.size());
  backend_->RmsNorm(hidden_.data(), weights_.final_norm, shape_.rms_norm_eps, num_rows,
                    normed_.data());
  backend_->MatMul(weights_.head(), normed_.data(), num_rows, {}, Backend::Output::kStore,
                   logits_.data());
  return {logits_.data(), logit_rows.size() * shape_.vocab_size};
}

void Transformer::RunLayer(const StepBatch& batch, int layer) {
  using Output = Backend::Output;
  const LayerWeights& w = weights_.layers[layer];
  const int rows = batch.num_rows;
  backend_->RmsNorm(hidden_.data(), w.attention_norm, shape_.rms_norm_eps, rows, normed_.data());
  backend_->MatMul(*w.qkv, normed_.data(), rows, w.qkv_bias, Output::kStore, qkv_.data());
  backend_->StoreKv(batch, layer, qkv_.data());
  backend_->SummarizeChunks(batch, layer, qkv_.data());
  backend_->Attend(batch, layer, qkv_.data(), attention_.data());
  backend_->MatMul(*w.output, attention_.data(), rows, w.output_bias, Output::kAdd, hidden_.data());

  backend_->RmsNorm(hidden_.data(), w.mlp_norm, shape_.rms_norm_eps, rows, normed_.data());
  backend_->MatMul(*w.gate_up, normed_.data(), rows, {}, Output::kStore, gate_up_.data());
  backend_->SwiGlu(gate_up_.data(), rows, shape_.intermediate_size, mlp_.data());
  backend_->MatMul(*w.down, mlp_.data(), rows, {}, Output::kAdd, hidden_.data());
}

int64_t Transformer::workspace_bytes() const {
  return static_cast<int64_t>((hidden_.size() + normed_.size() + qkv_.size() + attention_.size() +
                               gate_up_.size() + mlp_.size() + logits_.size()) *
                              sizeof(float));
}

}  // namespace folio
