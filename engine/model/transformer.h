#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"
#include "engine/types/attention_plan.h"
#include "engine/types/model_shape.h"

namespace folio {

// The forward pass of a decoder over one step: rows of any number of sequences, each
// under its own attention plan. Owns its activations, sized once for the largest step. Engine
// thread only.
class Transformer {
 public:
  // Borrows weights, adapters (AttentionPlan::adapter counts them) and backend for its lifetime.
  // Errors: RESOURCE_EXHAUSTED without memory for the activations.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(
      const ModelShape& shape, const DecoderStyle& style, const Weights& weights, Backend* backend,
      int max_step_rows, int max_logit_rows, const AdapterSet& adapters = {});

  // Runs the rows of the step and stores their keys and values; samples[i] answers batch.logits[i].
  // REQUIRES: batch.num_rows <= max_step_rows, batch.logits.size() <= max_logit_rows, every token
  // in the vocabulary, pages for every token of every slice.
  void Run(const StepBatch& batch, std::vector<Sample>* samples);

  // Before Start, once per slice (Backend::Reserve).
  absl::Status Reserve(const SequenceSlice& slice, bool first) {
    return backend_->Reserve(slice, first);
  }

  // The same in two halves (Backend::StartStep).
  void Start(const StepBatch& batch);
  void Finish(std::vector<Sample>* samples);
  bool runs_ahead() const { return backend_->runs_ahead(); }

  // The same for `tokens`, one per row. Returns the logits [logit_rows.size(), vocab_size] of the
  // given rows, valid until the next call.
  std::span<const float> Forward(const StepBatch& batch, std::span<const int32_t> tokens,
                                 std::span<const int> logit_rows);

  // Of the device; checked after Forward.
  absl::Status status() const { return backend_->status(); }

  // Bytes of activations.
  static int64_t WorkspaceBytes(const ModelShape& shape, const DecoderStyle& style,
                                int max_step_rows, int max_logit_rows);

 private:
  Transformer(const ModelShape& shape, const DecoderStyle& style, const Weights& weights,
              const AdapterSet& adapters, Backend* backend)
      : shape_(shape),
        style_(style),
        weights_(weights),
        adapters_(adapters.weights),
        backend_(backend) {}

  void Norm(const NormWeights& norm, const float* x, int rows, float* out);
  void NormHeads(const LayerWeights& weights, int rows);
  void RunVerbs(const StepBatch& batch);
  void RunLayer(const StepBatch& batch, int layer);
  // Of the step: which of its rows have an adapter.
  void FindAdapterRows(const StepBatch& batch);
  // Adds what the adapters of the rows do to a product y of x.
  void AddAdapters(int layer, LayerProduct product, const float* x, float* y);
  // Adds what a projection makes of x to the residual stream, through its norm if it has one.
  void AddProduct(int layer, LayerProduct product, const float* x, int rows);
  void RunMlp(int layer, int rows);
  void RunExperts(const LayerWeights& weights, int rows);

  const ModelShape shape_;
  const DecoderStyle style_;
  const Weights& weights_;
  const std::span<const AdapterWeights> adapters_;
  Backend* const backend_;
  // Rows next to each other that have the same adapter.
  struct AdapterRows {
    int adapter = 0;
    int row_begin = 0;
    int num_rows = 0;
  };
  std::vector<AdapterRows> adapter_rows_;
  std::vector<Backend::Expert> experts_;  // of one layer
  BufferOf<float> hidden_;                // [rows, hidden]
  BufferOf<float> normed_;                // [rows, hidden]
  BufferOf<float> qkv_;                   // [rows, (heads + 2 kv_heads) * head_dim]
  BufferOf<float> attention_;             // [rows, heads * head_dim]
  BufferOf<float> up_;                    // [rows, intermediate], gated: twice as wide, gate first
  BufferOf<float> mlp_;                   // [rows, intermediate], gated only
  BufferOf<float> expert_;    // of a mixture: [rows, experts] scores, [rows, hidden] twice
  BufferOf<float> low_rank_;  // [rows, largest rank of an adapter's product]
  BufferOf<float> logits_;    // [logit rows, vocab]
};

}  // namespace folio
