#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/base/memory.h"
#include "engine/tensor/tensor_view.h"
#include "engine/tensor/weight_format.h"
#include "engine/types/attention_plan.h"
#include "engine/types/host_tier.h"
#include "engine/types/kv_types.h"
#include "engine/types/layer_views.h"
#include "engine/types/model_shape.h"
#include "engine/types/position.h"
#include "engine/types/slice_source.h"

namespace folio {

// A weight matrix in the layout that a backend multiplies with. Owned by the caller, made by one
// backend and valid only with it. Immutable: safe to read from any thread.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int64_t rows() const = 0;  // outputs
  virtual int64_t cols() const = 0;  // inputs
  virtual int64_t bytes() const = 0;
  // What Backend::ReadPacked makes the matrix of again; empty where there is no packed_layout().
  virtual std::span<const std::byte> packed() const { return {}; }
};

// What was packed into a matrix.
struct PackedShape {
  int64_t rows = 0;
  int64_t cols = 0;
  DType given = DType::kBf16;  // the dtype of the parts
  WeightFormat format;
};
// Brings bytes [offset, offset + to.size()) of a packed matrix. Called from several threads.
using PackedReader = absl::FunctionRef<absl::Status(int64_t offset, std::span<std::byte> to)>;

// What the attention verbs need to know that does not change between steps.
struct AttentionSetup {
  KvGeometry geometry;
  SliceMemory pages;
  // Of pages that are written, and of sinks and pending queries.
  FrameMemory frames;
  FrameMemory summaries;
  // Null: all slices are in memory. Attend asks it for what it reads; what other verbs read and
  // write lies in pages that have not left memory yet.
  SliceSource* slices = nullptr;
  // With a HostTier [page]: the frame in which a page lies when a step starts, or ~page where it is
  // at home. Null: each page lies in the frame of its number.
  const FrameId* page_places = nullptr;
  // Of the checkpoint; plans may bring their own.
  Rotary rotary;
  // ALiBi: what is subtracted from a logit per token of distance, one per query head; else empty.
  std::vector<float> alibi_slopes;
  // CoCA; the geometry then has paired_keys.
  CocaQuery coca_query = CocaQuery::kNone;
  // Not the default only where the backend has_layer_views().
  LayerViews views = {};
  // Upper bounds of rows in one step, and of those whose logits are wanted, for workspace.
  int max_step_rows = 0;
  int max_logit_rows = 0;
  int vocab_size = 0;
};

// Runs the verbs of a transformer on one device. Knows shapes and plans, never a strategy's name.
// All calls from the engine thread, one at a time. Activations are fp32, row-major, [rows][width].
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual int num_threads() const = 0;

  // Where activations, weights' vectors, the KV cache and everything else that verbs are given
  // lies. Lives as long as the backend.
  virtual Memory* memory() = 0;

  // The host's memory below that of a device; null: there is nothing below memory().
  virtual HostTier* host_tier() { return nullptr; }

  // Not OK once the device has failed: what verbs gave since then means nothing, and nothing will
  // work again in this process. Checked after every step.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Rows of a step that keep the device busy, and are done soon enough for those who wait.
  virtual int usual_step_rows() const { return 512; }

  // Bytes that the verbs take beside what they are given, for a cache of this geometry, steps of
  // max_step_rows and matrices with at most max_inputs columns; unusual requests may take more.
  virtual int64_t WorkspaceBytes(const KvGeometry&, int /*max_step_rows*/,
                                 int64_t /*max_inputs*/) const {
    return 0;
  }

  // Packs parts, each [rows_i, cols] of fp32, fp16 or bf16 (all of one dtype), stacked by rows,
  // into one matrix of `format`. `parts` may be released afterwards. Errors: INVALID_ARGUMENT on a
  // shape or dtype mismatch or for a format the backend does not have, RESOURCE_EXHAUSTED without
  // memory.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts,
                                                             const WeightFormat& format) = 0;

  // Whether Pack has formats of integers.
  virtual bool packs_integers() const { return false; }

  // Names the order of the bytes of PackedMatrix::packed(), with its version: under the same name
  // the same weights are the same bytes, on every machine. Empty: matrices of this backend are not
  // kept in files.
  virtual std::string packed_layout() const { return ""; }

  // The matrix whose packed() had num_bytes bytes. `read` is asked for parts of part_bytes, the
  // last one may be shorter. Errors: those of `read`; INVALID_ARGUMENT where a matrix of this shape
  // has another number of bytes; RESOURCE_EXHAUSTED without memory; UNIMPLEMENTED without a layout.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> ReadPacked(const PackedShape& /*shape*/,
                                                                   int64_t /*num_bytes*/,
                                                                   int64_t /*part_bytes*/,
                                                                   PackedReader /*read*/) {
    return absl::UnimplementedError("this backend reads no packed matrices");
  }

  // A matrix of random numbers, for models without files: element i (row by row) is uniform with
  // this standard deviation, bf16 before it is packed, and depends on seed and i alone. Errors:
  // those of Pack.
  //   sqrt(3) deviation (2 u - 1), u the upper 24 bits of a splitmix64 finaliser over seed and i
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRandom(int64_t rows, int64_t cols,
                                                                   uint64_t seed, float deviation,
                                                                   const WeightFormat& format) = 0;

  // Whether complete pages of the cache may be integers (KvGeometry::sealed_bits).
  virtual bool seals_pages() const { return false; }

  // Of a page, where neither the user nor short chunks of the model want fewer.
  virtual int preferred_page_tokens() const { return 64; }

  // Whether it scores 8-bit copies of summaries first (KvGeometry::coarse_summaries).
  virtual bool scores_coarsely() const { return false; }

  // Must be called once before the attention verbs. Errors: INVALID_ARGUMENT for an unusable
  // geometry.
  virtual absl::Status SetupAttention(const AttentionSetup& setup) = 0;

  // While a step is planned, once per slice and before StartStep: takes the memory that the verbs
  // need for this slice beside those taken before, `first` being the first of a step. Errors:
  // RESOURCE_EXHAUSTED, and the slice is not taken; the others can run.
  virtual absl::Status Reserve(const SequenceSlice& /*slice*/, bool /*first*/) {
    return absl::OkStatus();
  }

  // Starts one step: `verbs` calls the verbs below for the batch that it is given, which may have
  // more rows than `batch`. A backend may record what they do, and repeat that for a later step
  // which looks the same instead of calling them.
  virtual void StartStep(const StepBatch& batch,
                         absl::FunctionRef<void(const StepBatch&)> verbs) = 0;

  // Waits for the oldest step that was started and not finished; samples[i] answers its logits[i].
  virtual void FinishStep(std::vector<Sample>* samples) = 0;

  // Whether a step may be started before the one before it is finished; at most one may.
  virtual bool runs_ahead() const { return false; }

  void RunStep(const StepBatch& batch, absl::FunctionRef<void(const StepBatch&)> verbs,
               std::vector<Sample>* samples) {
    StartStep(batch, verbs);
    FinishStep(samples);
  }

  //   out [batch.num_rows, cols]   row i = row batch.tokens[i] of the table
  virtual void Embed(const StepBatch& batch, const PackedMatrix& table, float* out) = 0;

  //   out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight          x, out [num_rows, width], out may
  //   be x
  virtual void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
                       float* out) = 0;

  //   out[i] = (x[i] - mean) / sqrt(variance + eps) * weight + bias       bias may be empty, out x
  virtual void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                         double eps, int num_rows, float* out) = 0;

  // RMS norms of single heads, in place: num_heads of each row side by side, of weight.size()
  // numbers each; the next row begins row_stride numbers later.
  //   x [num_rows][row_stride]
  virtual void NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                         int64_t row_stride, float* x) = 0;

  //   out [batch.logits.size(), width]   row i = row batch.logits[i].row of x
  virtual void TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) = 0;

  enum class Output { kStore, kAdd };
  //   y [num_rows, matrix.rows()] (=, +=) x [num_rows, matrix.cols()] * matrix^T (+ bias, may be
  //   empty)
  // What a row is does not depend on the other rows: on the CPU bit for bit, on a GPU but for
  // rounding.
  virtual void MatMul(const PackedMatrix& matrix, const float* x, int num_rows,
                      std::span<const float> bias, Output output, float* y) = 0;

  //   out [num_rows, width] = silu(gate) * up      gate_up [num_rows, 2 * width], gate first
  virtual void SwiGlu(const float* gate_up, int num_rows, int width, float* out) = 0;

  enum class GeluForm { kErf, kTanh };
  //   x [num_rows, width] = gelu(x), exact or in its tanh approximation (Hendrycks & Gimpel 2016)
  virtual void Gelu(GeluForm form, int num_rows, int width, float* x) = 0;

  // One SwiGLU MLP of a mixture.
  struct Expert {
    const PackedMatrix* up;    // [2 * width, hidden], gate first
    const PackedMatrix* down;  // [hidden, width]
  };
  struct ExpertMix {
    std::span<const Expert> experts;
    int num_chosen = 0;
    int num_rows = 0;
    const float* scores = nullptr;  // [num_rows, experts.size()]
    const float* x = nullptr;       // [num_rows, hidden]
    // Working memory: [num_rows, hidden] each, [num_rows, 2 * width] and [num_rows, width].
    float* inputs = nullptr;
    float* outputs = nullptr;
    float* up = nullptr;
    float* activated = nullptr;
  };

  // Whether there is MixExperts; without it no model of experts is loaded.
  virtual bool mixes_experts() const { return false; }

  //   out [num_rows, hidden]   row i += sum of p_e down_e(SwiGLU(up_e(x[i]))) over the num_chosen
  //   experts e that score best in row i, p their softmax; ties: the smaller index
  // (Jiang et al. 2024, Mixtral of Experts, section 2). Other experts are not read.
  virtual void MixExperts(const ExpertMix& /*mix*/, float* /*out*/) {}

  // Whether there are AttentionSetup::views and the verbs up to SoftCap; without them no model that
  // needs them is loaded.
  virtual bool has_layer_views() const { return false; }

  //   out[i] += RmsNorm(x[i])           x, out [num_rows, width]; x is overwritten
  virtual void AddRmsNorm(float* /*x*/, std::span<const float> /*weight*/, double /*eps*/,
                          int /*num_rows*/, float* /*out*/) {}

  //   out [num_rows, width] = gelu_tanh(gate) * up      gate_up [num_rows, 2 * width], gate first
  virtual void GeGlu(const float* /*gate_up*/, int /*num_rows*/, int /*width*/, float* /*out*/) {}

  //   x = factor * x
  virtual void Scale(float /*factor*/, int64_t /*count*/, float* /*x*/) {}

  //   x = cap * tanh(x / cap)
  virtual void SoftCap(float /*cap*/, int64_t /*count*/, float* /*x*/) {}

  // Stores keys (page-rotated) and values of every row, and un-rotated copies of the sinks.
  //   qkv [batch.num_rows, (num_heads + 2 num_kv_heads) * head_dim]   q, then k, then v; not
  //   rotated
  virtual void StoreKv(const StepBatch& batch, int layer, const float* qkv) = 0;

  // Collects queries of unfinished chunks and writes the summary of each chunk that this
  // step completes (LongHeads eq. 1-2, chunk-local rotation). After StoreKv of the same layer.
  virtual void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) = 0;

  // Attention of every row under its sequence's plan, selection of chunks included.
  //   out [batch.num_rows, num_heads * head_dim]
  virtual void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) = 0;

  // Does batch.logits. Filters are in the order of sampling/sampler.h, and a draw depends on
  // logits, parameters, seed and index only. Once per step, last.
  //   logits [batch.logits.size(), vocab_size]
  virtual void SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) = 0;
};

}  // namespace folio
