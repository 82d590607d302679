#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/memory.h"
#include "engine/tensor/tensor_view.h"
#include "engine/types/attention_plan.h"
#include "engine/types/kv_types.h"
#include "engine/types/model_shape.h"
#include "engine/types/position.h"

namespace folio {

// A weight matrix in the layout that a backend multiplies with. Owned by the caller, made by one
// backend and valid only with it. Immutable: safe to read from any thread.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int64_t rows() const = 0;  // outputs
  virtual int64_t cols() const = 0;  // inputs
  virtual int64_t bytes() const = 0;
};

// What the attention verbs need to know that does not change between steps.
struct AttentionSetup {
  KvGeometry geometry;
  FrameMemory kv;
  FrameMemory summaries;
  // Of the checkpoint; plans may bring their own.
  Rotary rotary;
  // ALiBi: what is subtracted from a logit per token of distance, one per query head; else empty.
  std::vector<float> alibi_slopes;
  // CoCA; the geometry then has paired_keys.
  CocaQuery coca_query = CocaQuery::kNone;
  // Upper bound of rows in one step, for workspace.
  int max_step_rows = 0;
};

// Runs the verbs of a transformer on one device. Knows shapes and plans, never a strategy's name.
// All calls from the engine thread, one at a time. Activations are fp32, row-major, [rows][width].
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual int num_threads() const = 0;

  // Where activations, weights' vectors, the KV cache and everything else that verbs are given lies
  // (tokens and row numbers apart). Lives as long as the backend.
  virtual Memory* memory() = 0;

  // Not OK once the device has failed: what verbs gave since then means nothing, and nothing will
  // work again in this process. Checked after every step.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Packs parts, each [rows_i, cols] of fp32, fp16 or bf16 (all of one dtype), stacked by rows,
  // into one matrix of the same dtype. `parts` may be released afterwards. Errors: INVALID_ARGUMENT
  // on a shape or dtype mismatch, RESOURCE_EXHAUSTED without memory.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts) = 0;

  // Must be called once before the attention verbs. Errors: INVALID_ARGUMENT for an unusable
  // geometry.
  virtual absl::Status SetupAttention(const AttentionSetup& setup) = 0;

  //   out [tokens.size(), cols]   row i = row tokens[i] of the table; ids must be in range
  virtual void Embed(const PackedMatrix& table, std::span<const int32_t> tokens, float* out) = 0;

  //   out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight          x, out [num_rows, width], out may
  //   be x
  virtual void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
                       float* out) = 0;

  //   out[i] = (x[i] - mean) / sqrt(variance + eps) * weight + bias       bias may be empty, out x
  virtual void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                         double eps, int num_rows, float* out) = 0;

  //   out [rows.size(), width]   row i = row rows[i] of x
  virtual void TakeRows(const float* x, std::span<const int> rows, int width, float* out) = 0;

  enum class Output { kStore, kAdd };
  //   y [num_rows, matrix.rows()] (=, +=) x [num_rows, matrix.cols()] * matrix^T (+ bias, may be
  //   empty)
  // The result of a row does not depend on the other rows, bit for bit.
  virtual void MatMul(const PackedMatrix& matrix, const float* x, int num_rows,
                      std::span<const float> bias, Output output, float* y) = 0;

  //   out [num_rows, width] = silu(gate) * up      gate_up [num_rows, 2 * width], gate first
  virtual void SwiGlu(const float* gate_up, int num_rows, int width, float* out) = 0;

  enum class GeluForm { kErf, kTanh };
  //   x [num_rows, width] = gelu(x), exact or in its tanh approximation (Hendrycks & Gimpel 2016)
  virtual void Gelu(GeluForm form, int num_rows, int width, float* x) = 0;

  // Stores keys (page-rotated) and values of every row, and un-rotated copies of the sinks.
  //   qkv [batch.num_rows, (num_heads + 2 num_kv_heads) * head_dim]   q, then k, then v; not
  //   rotated
  virtual void StoreKv(const StepBatch& batch, int layer, const float* qkv) = 0;

  // Collects queries of unfinished chunks and writes the representation of each chunk that this
  // step completes (LongHeads eq. 1-2, chunk-local rotation). After StoreKv of the same layer.
  virtual void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) = 0;

  // Attention of every row under its sequence's plan, selection of chunks included.
  //   out [batch.num_rows, num_heads * head_dim]
  virtual void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) = 0;
};

}  // namespace folio
