// A backend whose device fails when it is told to.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engine/backend/backend.h"

namespace folio::test {

class FailingBackend : public Backend {
 public:
  // Set from any thread: the device is lost from then on.
  FailingBackend(std::unique_ptr<Backend> real, const std::atomic<bool>* lost)
      : real_(std::move(real)), lost_(lost) {}

  absl::Status status() const override {
    return *lost_ ? absl::InternalError("an illegal memory access") : real_->status();
  }

  std::string name() const override { return real_->name(); }
  int num_threads() const override { return real_->num_threads(); }
  Memory* memory() override { return real_->memory(); }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts,
                                                     const WeightFormat& format) override {
    return real_->Pack(parts, format);
  }
  bool packs_integers() const override { return real_->packs_integers(); }
  std::string packed_layout() const override { return real_->packed_layout(); }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> ReadPacked(const PackedShape& shape,
                                                           int64_t num_bytes, int64_t part_bytes,
                                                           PackedReader read) override {
    return real_->ReadPacked(shape, num_bytes, part_bytes, read);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRandom(int64_t rows, int64_t cols,
                                                           uint64_t seed, float deviation,
                                                           const WeightFormat& format) override {
    return real_->PackRandom(rows, cols, seed, deviation, format);
  }
  absl::Status SetupAttention(const AttentionSetup& setup) override {
    return real_->SetupAttention(setup);
  }
  absl::Status Reserve(const SequenceSlice& slice, bool first) override {
    return real_->Reserve(slice, first);
  }
  void StartStep(const StepBatch& batch, absl::FunctionRef<void(const StepBatch&)> verbs) override {
    real_->StartStep(batch, verbs);
  }
  void FinishStep(std::vector<Sample>* samples) override { real_->FinishStep(samples); }
  bool runs_ahead() const override { return real_->runs_ahead(); }
  void Embed(const StepBatch& batch, const PackedMatrix& table, float* out) override {
    real_->Embed(batch, table, out);
  }
  void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
               float* out) override {
    real_->RmsNorm(x, weight, eps, num_rows, out);
  }
  void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                 double eps, int num_rows, float* out) override {
    real_->LayerNorm(x, weight, bias, eps, num_rows, out);
  }
  void NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                 int64_t row_stride, float* x) override {
    real_->NormHeads(weight, eps, num_rows, num_heads, row_stride, x);
  }
  void TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) override {
    real_->TakeLogitRows(batch, x, width, out);
  }
  void MatMul(const PackedMatrix& matrix, const float* x, int num_rows, std::span<const float> bias,
              Output output, float* y) override {
    real_->MatMul(matrix, x, num_rows, bias, output, y);
  }
  void SwiGlu(const float* gate_up, int num_rows, int width, float* out) override {
    real_->SwiGlu(gate_up, num_rows, width, out);
  }
  void Gelu(GeluForm form, int num_rows, int width, float* x) override {
    real_->Gelu(form, num_rows, width, x);
  }
  bool mixes_experts() const override { return real_->mixes_experts(); }
  void MixExperts(const ExpertMix& mix, float* out) override { real_->MixExperts(mix, out); }
  bool has_layer_views() const override { return real_->has_layer_views(); }
  void AddRmsNorm(float* x, std::span<const float> weight, double eps, int num_rows,
                  float* out) override {
    real_->AddRmsNorm(x, weight, eps, num_rows, out);
  }
  void GeGlu(const float* gate_up, int num_rows, int width, float* out) override {
    real_->GeGlu(gate_up, num_rows, width, out);
  }
  void Scale(float factor, int64_t count, float* x) override { real_->Scale(factor, count, x); }
  void SoftCap(float cap, int64_t count, float* x) override { real_->SoftCap(cap, count, x); }
  void StoreKv(const StepBatch& batch, int layer, const float* qkv) override {
    real_->StoreKv(batch, layer, qkv);
  }
  void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) override {
    real_->SummarizeChunks(batch, layer, qkv);
  }
  void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) override {
    real_->Attend(batch, layer, qkv, out);
  }
  void SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) override {
    real_->SampleTokens(batch, logits, vocab_size);
  }

 private:
  const std::unique_ptr<Backend> real_;
  const std::atomic<bool>* const lost_;
};

// The standard library finds no memory while weights are packed.
class PoorBackend final : public FailingBackend {
 public:
  explicit PoorBackend(std::unique_ptr<Backend> real) : FailingBackend(std::move(real), &kNever) {}
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRandom(int64_t, int64_t, uint64_t, float,
                                                           const WeightFormat&) override {
    throw std::bad_alloc();
  }

 private:
  inline static const std::atomic<bool> kNever{false};
};

}  // namespace folio::test
