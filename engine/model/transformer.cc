#include "engine/model/transformer.h"

#include <cmath>

#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Per row, beside what every MLP needs.
int64_t ExpertFloats(const ModelShape& shape) {
  return shape.num_experts == 0 ? 0 : shape.num_experts + 2 * int64_t{shape.hidden_size};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    const ModelShape& shape, const DecoderStyle& style, const Weights& weights, Backend* backend,
    int max_step_rows, int max_logit_rows, const AdapterSet& adapters) {
  const int64_t rows = max_step_rows;
  const int64_t head_dim = shape.head_dim;
  const bool gated = style.gated();
  auto made =
      std::unique_ptr<Transformer>(new Transformer(shape, style, weights, adapters, backend));
  const auto allocate = [&](BufferOf<float>* buffer, int64_t floats) -> absl::Status {
    FOLIO_ASSIGN_OR_RETURN(*buffer, BufferOf<float>::Create(backend->memory(), floats));
    return absl::OkStatus();
  };
  FOLIO_RETURN_IF_ERROR(allocate(&made->hidden_, rows * shape.hidden_size));
  FOLIO_RETURN_IF_ERROR(allocate(&made->normed_, rows * shape.hidden_size));
  FOLIO_RETURN_IF_ERROR(
      allocate(&made->qkv_, rows * (shape.num_heads + 2 * shape.num_kv_heads) * head_dim));
  FOLIO_RETURN_IF_ERROR(allocate(&made->attention_, rows * shape.num_heads * head_dim));
  FOLIO_RETURN_IF_ERROR(allocate(&made->up_, rows * (gated ? 2 : 1) * shape.intermediate_size));
  FOLIO_RETURN_IF_ERROR(allocate(&made->mlp_, gated ? rows * shape.intermediate_size : 0));
  FOLIO_RETURN_IF_ERROR(allocate(&made->expert_, rows * ExpertFloats(shape)));
  FOLIO_RETURN_IF_ERROR(allocate(&made->low_rank_, rows * adapters.max_rank));
  FOLIO_RETURN_IF_ERROR(allocate(&made->logits_, int64_t{max_logit_rows} * shape.vocab_size));
  return made;
}

void Transformer::Run(const StepBatch& batch, std::vector<Sample>* samples) {
  Start(batch);
  Finish(samples);
}

void Transformer::Start(const StepBatch& batch) {
  backend_->StartStep(batch, [this](const StepBatch& padded) { RunVerbs(padded); });
}

void Transformer::Finish(std::vector<Sample>* samples) { backend_->FinishStep(samples); }

std::span<const float> Transformer::Forward(const StepBatch& batch, std::span<const int32_t> tokens,
                                            std::span<const int> logit_rows) {
  StepBatch step = batch;
  step.tokens.assign(tokens.begin(), tokens.end());
  step.logits.clear();
  for (const int row : logit_rows) step.logits.emplace_back().row = row;
  std::vector<Sample> samples;
  Run(step, &samples);
  const auto num_rows = static_cast<int64_t>(logit_rows.size());
  return backend_->memory()->Read(logits_.data(), num_rows * shape_.vocab_size);
}

void Transformer::RunVerbs(const StepBatch& batch) {
  FindAdapterRows(batch);
  backend_->Embed(batch, *weights_.embedding, hidden_.data());
  if (style_.scaled_embedding) {
    backend_->Scale(std::sqrt(static_cast<float>(shape_.hidden_size)),
                    int64_t{batch.num_rows} * shape_.hidden_size, hidden_.data());
  }
  for (int layer = 0; layer < shape_.num_layers; ++layer) RunLayer(batch, layer);
  if (batch.logits.empty()) return;
  const int num_rows = static_cast<int>(batch.logits.size());
  backend_->TakeLogitRows(batch, hidden_.data(), shape_.hidden_size, normed_.data());
  Norm(weights_.final_norm, normed_.data(), num_rows, normed_.data());
  backend_->MatMul(weights_.head(), normed_.data(), num_rows, weights_.lm_head.bias,
                   Backend::Output::kStore, logits_.data());
  if (style_.logit_cap > 0) {
    backend_->SoftCap(style_.logit_cap, int64_t{num_rows} * shape_.vocab_size, logits_.data());
  }
  backend_->SampleTokens(batch, logits_.data(), shape_.vocab_size);
}

void Transformer::Norm(const NormWeights& norm, const float* x, int rows, float* out) {
  if (style_.norm == DecoderStyle::Norm::kRms) {
    backend_->RmsNorm(x, norm.weight, shape_.norm_eps, rows, out);
  } else {
    backend_->LayerNorm(x, norm.weight, norm.bias, shape_.norm_eps, rows, out);
  }
}

void Transformer::NormHeads(const LayerWeights& w, int rows) {
  const int64_t q_size = int64_t{shape_.num_heads} * shape_.head_dim;
  const int64_t row = q_size + 2 * int64_t{shape_.num_kv_heads} * shape_.head_dim;
  backend_->NormHeads(w.q_norm, shape_.norm_eps, rows, shape_.num_heads, row, qkv_.data());
  backend_->NormHeads(w.k_norm, shape_.norm_eps, rows, shape_.num_kv_heads, row,
                      qkv_.data() + q_size);
}

void Transformer::FindAdapterRows(const StepBatch& batch) {
  adapter_rows_.clear();
  if (adapters_.empty()) return;
  for (const SequenceSlice& slice : batch.slices) {
    if (slice.plan->adapter < 0) continue;
    AdapterRows* const last = adapter_rows_.empty() ? nullptr : &adapter_rows_.back();
    if (last != nullptr && last->adapter == slice.plan->adapter &&
        last->row_begin + last->num_rows == slice.row_begin) {
      last->num_rows += slice.num_rows;
    } else {
      adapter_rows_.push_back({slice.plan->adapter, slice.row_begin, slice.num_rows});
    }
  }
}

// A product of its own, behind that of all rows: the others are what they are without adapters, bit
// for bit.
void Transformer::AddAdapters(int layer, LayerProduct product, const float* x, float* y) {
  for (const auto& [adapter, row_begin, num_rows] : adapter_rows_) {
    const LoraPair& pair = adapters_[adapter].layers[layer][static_cast<size_t>(product)];
    if (pair.a == nullptr) continue;
    backend_->MatMul(*pair.a, x + row_begin * pair.a->cols(), num_rows, {}, Backend::Output::kStore,
                     low_rank_.data());
    backend_->MatMul(*pair.b, low_rank_.data(), num_rows, {}, Backend::Output::kAdd,
                     y + row_begin * pair.b->rows());
  }
}

void Transformer::AddProduct(int layer, LayerProduct product, const float* x, int rows) {
  using Output = Backend::Output;
  const LayerWeights& w = weights_.layers[layer];
  const bool attention = product == LayerProduct::kOutput;
  const LinearWeights& linear = attention ? w.output : w.down;
  const NormWeights& post_norm = attention ? w.attention_post_norm : w.mlp_post_norm;
  if (!style_.post_norms) {
    backend_->MatMul(*linear.matrix, x, rows, linear.bias, Output::kAdd, hidden_.data());
    return AddAdapters(layer, product, x, hidden_.data());
  }
  backend_->MatMul(*linear.matrix, x, rows, linear.bias, Output::kStore, normed_.data());
  AddAdapters(layer, product, x, normed_.data());
  backend_->AddRmsNorm(normed_.data(), post_norm.weight, shape_.norm_eps, rows, hidden_.data());
}

void Transformer::RunMlp(int layer, int rows) {
  using Output = Backend::Output;
  const LayerWeights& w = weights_.layers[layer];
  const int width = shape_.intermediate_size;
  backend_->MatMul(*w.up.matrix, normed_.data(), rows, w.up.bias, Output::kStore, up_.data());
  AddAdapters(layer, LayerProduct::kUp, normed_.data(), up_.data());
  const float* activated = mlp_.data();
  if (style_.mlp == DecoderStyle::Mlp::kSwiGlu) {
    backend_->SwiGlu(up_.data(), rows, width, mlp_.data());
  } else if (style_.mlp == DecoderStyle::Mlp::kGeGluTanh) {
    backend_->GeGlu(up_.data(), rows, width, mlp_.data());
  } else {
    const bool exact = style_.mlp == DecoderStyle::Mlp::kGeluErf;
    backend_->Gelu(exact ? Backend::GeluForm::kErf : Backend::GeluForm::kTanh, rows, width,
                   up_.data());
    activated = up_.data();
  }
  AddProduct(layer, LayerProduct::kDown, activated, rows);
}

void Transformer::RunExperts(const LayerWeights& w, int rows) {
  experts_.clear();
  for (const ExpertWeights& expert : w.experts) {
    experts_.push_back({expert.up.matrix.get(), expert.down.matrix.get()});
  }
  Backend::ExpertMix mix;
  mix.experts = experts_;
  mix.num_chosen = shape_.experts_per_token;
  mix.num_rows = rows;
  mix.x = normed_.data();
  mix.inputs = expert_.data() + int64_t{rows} * shape_.num_experts;
  mix.outputs = mix.inputs + int64_t{rows} * shape_.hidden_size;
  mix.scores = expert_.data();
  mix.up = up_.data();
  mix.activated = mlp_.data();
  backend_->MatMul(*w.router, normed_.data(), rows, {}, Backend::Output::kStore, expert_.data());
  backend_->MixExperts(mix, hidden_.data());
}

void Transformer::RunLayer(const StepBatch& batch, int layer) {
  using Output = Backend::Output;
  using Residual = DecoderStyle::Residual;
  const LayerWeights& w = weights_.layers[layer];
  const int rows = batch.num_rows;
  Norm(w.attention_norm, hidden_.data(), rows, normed_.data());
  backend_->MatMul(*w.qkv.matrix, normed_.data(), rows, w.qkv.bias, Output::kStore, qkv_.data());
  AddAdapters(layer, LayerProduct::kQkv, normed_.data(), qkv_.data());
  if (style_.head_norms) NormHeads(w, rows);
  backend_->StoreKv(batch, layer, qkv_.data());
  backend_->SummarizeChunks(batch, layer, qkv_.data());
  backend_->Attend(batch, layer, qkv_.data(), attention_.data());
  // A parallel MLP reads the layer's input.
  if (style_.residual == Residual::kParallel)
    Norm(w.mlp_norm, hidden_.data(), rows, normed_.data());
  AddProduct(layer, LayerProduct::kOutput, attention_.data(), rows);
  if (style_.residual == Residual::kSequential)
    Norm(w.mlp_norm, hidden_.data(), rows, normed_.data());
  if (w.experts.empty()) {
    RunMlp(layer, rows);
  } else {
    RunExperts(w, rows);
  }
}

int64_t Transformer::WorkspaceBytes(const ModelShape& shape, const DecoderStyle& style,
                                    int max_step_rows, int max_logit_rows) {
  const bool gated = style.gated();
  const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim;
  const int64_t kv_size = int64_t{shape.num_kv_heads} * shape.head_dim;
  const int64_t per_row = 2 * int64_t{shape.hidden_size} + 2 * q_size + 2 * kv_size +
                          (gated ? 3 : 1) * int64_t{shape.intermediate_size} + ExpertFloats(shape);
  return static_cast<int64_t>(sizeof(float)) *
         (max_step_rows * per_row + int64_t{max_logit_rows} * shape.vocab_size);
}

}  // namespace folio
