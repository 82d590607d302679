#include "engine/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_attention.h"
#include "engine/backend/cuda/cuda_host_tier.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/operands.h"
#include "engine/backend/cuda/step_graphs.h"
#include "engine/backend/cuda/step_image.h"
#include "engine/backend/cuda/step_results.h"
#include "engine/backend/cuda/verb_clock.h"
#include "engine/backend/verb_timer.h"
#include "engine/base/status_macros.h"
#include "engine/types/geometry_check.h"

namespace folio {
namespace {

using cuda::CudaMemory;
using cuda::Weight;

Weight WeightOf(DType dtype) {
  return dtype == DType::kF32 ? Weight::kF32 : dtype == DType::kF16 ? Weight::kF16 : Weight::kBf16;
}

// [rows, cols] as the checkpoint has it: cuBLAS reads it as it is.
class CudaMatrix final : public PackedMatrix {
 public:
  CudaMatrix(Buffer data, DType dtype, int64_t rows, int64_t cols)
      : data_(std::move(data)), dtype_(dtype), rows_(rows), cols_(cols) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return rows_ * cols_ * DTypeBytes(dtype_); }
  const void* data() const { return data_.data(); }
  Weight dtype() const { return WeightOf(dtype_); }

 private:
  const Buffer data_;
  const DType dtype_;
  const int64_t rows_;
  const int64_t cols_;
};

class CudaBackend final : public Backend, public VerbTimer {
 public:
  explicit CudaBackend(std::unique_ptr<CudaMemory> memory)
      : memory_(std::move(memory)),
        host_tier_(memory_.get()),
        operands_(memory_.get()),
        graphs_(memory_.get()) {}

  std::string name() const override { return absl::StrCat("cuda/", memory_->info().name); }
  int num_threads() const override { return 1; }
  Memory* memory() override { return memory_.get(); }
  HostTier* host_tier() override { return &host_tier_; }
  absl::Status status() const override { return memory_->status(); }
  int usual_step_rows() const override { return 2048; }

  int64_t WorkspaceBytes(const KvGeometry& geometry, int max_step_rows,
                         int64_t max_inputs) const override {
    return cuda::CudaAttention::WorkspaceBytes(geometry, max_step_rows, memory_->info()) +
           cuda::StepImage::kUsualBytes + max_step_rows * max_inputs * 2;
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts,
                                                     const WeightFormat& format) override;
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRandom(int64_t rows, int64_t cols,
                                                           uint64_t seed, float deviation,
                                                           const WeightFormat& format) override;
  absl::Status SetupAttention(const AttentionSetup& setup) override;
  absl::Status Reserve(const SequenceSlice& slice, bool first) override;
  void StartStep(const StepBatch& batch, absl::FunctionRef<void(const StepBatch&)> verbs) override;
  void FinishStep(std::vector<Sample>* samples) override {
    samples->clear();
    if (!results_) return;
    results_->Receive(samples);
    if (status().ok()) host_tier_.Receive();
  }
  bool runs_ahead() const override { return true; }
  std::vector<VerbTime> TimeVerbs(absl::FunctionRef<void()> steps) override;
  void Embed(const StepBatch& batch, const PackedMatrix& table, float* out) override;
  void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
               float* out) override;
  void NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                 int64_t row_stride, float* x) override;
  void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                 double eps, int num_rows, float* out) override;
  void TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) override;
  void MatMul(const PackedMatrix& matrix, const float* x, int num_rows, std::span<const float> bias,
              Output output, float* y) override;
  void SwiGlu(const float* gate_up, int num_rows, int width, float* out) override;
  void Gelu(GeluForm form, int num_rows, int width, float* x) override;
  void StoreKv(const StepBatch& batch, int layer, const float* qkv) override;
  void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) override;
  void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) override;
  void SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) override;

 private:
  cuda::Stream stream() const { return memory_->stream(); }
  // After the launches of a verb.
  void Check(const char* verb = __builtin_FUNCTION()) {
    memory_->CheckLaunches(verb);
    if (clock_) clock_->Mark(verb);
  }
  const StepBatch& Padded(const StepBatch& batch);

  // Freed last: everything else lies in it.
  const std::unique_ptr<CudaMemory> memory_;
  cuda::CudaHostTier host_tier_;
  cuda::Operands operands_;
  std::optional<AttentionSetup> setup_;
  BufferOf<float> slopes_;
  cuda::Geometry geometry_ = {};
  std::optional<cuda::StepImage> image_;
  std::optional<cuda::CudaAttention> attention_;
  std::optional<cuda::StepResults> results_;
  cuda::StepGraphs graphs_;
  // What the slices need that Reserve took.
  struct Needs {
    cuda::StepShape shape;
    cuda::StepImage::Sizes sizes;
    int64_t num_picks = 0;
  };
  Needs needs_;
  std::optional<cuda::VerbClock> clock_;  // while verbs are timed
  StepBatch padded_;
};

// Integer products have no kernels here.
absl::Status CheckFormat(const WeightFormat& format) {
  if (format.codec == WeightFormat::Codec::kAsGiven) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "int8 and int4 weights run on the CPU backend only; take --weight-dtype bf16");
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaBackend::Pack(std::span<const TensorView> parts,
                                                                const WeightFormat& format) {
  FOLIO_RETURN_IF_ERROR(CheckFormat(format));
  int64_t rows = 0;
  for (const TensorView& part : parts) {
    if (part.rank != 2 || part.shape[1] != parts[0].shape[1] || part.dtype != parts[0].dtype) {
      return absl::InvalidArgumentError("the parts of a matrix differ in width or dtype");
    }
    rows += part.shape[0];
  }
  const int64_t cols = parts[0].shape[1];
  const int64_t bytes = rows * cols * DTypeBytes(parts[0].dtype);
  FOLIO_ASSIGN_OR_RETURN(Buffer data, Buffer::Create(memory_.get(), bytes));
  std::byte* at = data.data();
  for (const TensorView& part : parts) {
    memory_->Write(at, part.data, part.num_bytes());
    at += part.num_bytes();
  }
  FOLIO_RETURN_IF_ERROR(status());
  operands_.Expect(WeightOf(parts[0].dtype), cols);
  return std::make_unique<CudaMatrix>(std::move(data), parts[0].dtype, rows, cols);
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaBackend::PackRandom(int64_t rows, int64_t cols,
                                                                      uint64_t seed,
                                                                      float deviation,
                                                                      const WeightFormat& format) {
  FOLIO_RETURN_IF_ERROR(CheckFormat(format));
  const int64_t bytes = rows * cols * DTypeBytes(DType::kBf16);
  FOLIO_ASSIGN_OR_RETURN(Buffer data, Buffer::Create(memory_.get(), bytes));
  cuda::FillRandom(stream(), rows * cols, seed, deviation, data.data());
  Check();
  FOLIO_RETURN_IF_ERROR(status());
  operands_.Expect(Weight::kBf16, cols);
  return std::make_unique<CudaMatrix>(std::move(data), DType::kBf16, rows, cols);
}

absl::Status CudaBackend::SetupAttention(const AttentionSetup& setup) {
  const KvGeometry& g = setup.geometry;
  FOLIO_RETURN_IF_ERROR(CheckGeometry(g));
  setup_ = setup;
  FOLIO_ASSIGN_OR_RETURN(slopes_, BufferOf<float>::CopyOf(memory_.get(), setup.alibi_slopes));
  const PendingRows pending(g);
  geometry_ = {
      .num_layers = g.num_layers,
      .num_heads = g.num_heads,
      .num_kv_heads = g.num_kv_heads,
      .head_dim = g.head_dim,
      .dim = g.padded_dim,
      .key_dim = g.padded_key_dim(),
      .page_tokens = g.page_tokens,
      .cache = g.dtype == DType::kBf16 ? cuda::Cache::kBf16 : cuda::Cache::kF32,
      .paired_keys = g.paired_keys,
      .coca_query = setup.coca_query,
      .key_bytes = g.key_bytes(),
      .slice_bytes = g.slice_bytes(),
      .frame_bytes = setup.frames.frame_bytes,
      .summary_frame_bytes = setup.summaries.frame_bytes,
      .pending_row_bytes = pending.row_bytes,
      .pending_rows_per_frame = pending.rows_per_frame,
      .kv = reinterpret_cast<const unsigned char*>(setup.frames.base),
      .summaries = reinterpret_cast<unsigned char*>(setup.summaries.base),
      .alibi_slopes = setup.alibi_slopes.empty() ? nullptr : slopes_.data(),
      .slices = host_tier_.cache(),
  };
  image_.emplace(memory_.get(), *setup_, geometry_);
  attention_.emplace(memory_.get(), *setup_, geometry_);
  results_.emplace(memory_.get(), *setup_, geometry_);
  operands_.Allocate(setup.max_step_rows);
  return status();
}

absl::Status CudaBackend::Reserve(const SequenceSlice& slice, bool first) {
  if (!status().ok()) return absl::OkStatus();  // every step says what is wrong
  Needs needs = first ? Needs() : needs_;
  image_->Measure(slice, &needs.shape);
  ++needs.sizes.num_slices;
  needs.sizes.num_rows += slice.num_rows;
  needs.sizes.num_frames += cuda::StepImage::NumFrames(slice);
  needs.sizes.num_chunk_tasks = needs.shape.num_chunk_tasks;
  needs.sizes.num_logit_changes += slice.num_logit_changes;
  needs.num_picks += results_->NumPicks(slice);
  FOLIO_RETURN_IF_ERROR(image_->Reserve(slice, needs.sizes));
  FOLIO_RETURN_IF_ERROR(attention_->Reserve(needs.shape));
  FOLIO_RETURN_IF_ERROR(results_->Reserve(needs.num_picks));
  needs_ = needs;
  return absl::OkStatus();
}

// Rows and logits of a bucket: graphs are few.
const StepBatch& CudaBackend::Padded(const StepBatch& batch) {
  padded_ = batch;
  const int rows = cuda::StepImage::BucketOf(batch.num_rows, setup_->max_step_rows);
  const int logits =
      cuda::StepImage::BucketOf(static_cast<int>(batch.logits.size()), setup_->max_logit_rows);
  padded_.num_rows = rows;
  padded_.tokens.resize(rows, 0);
  LogitsTask padding;
  padding.row = -1;
  padded_.logits.resize(logits, padding);
  return padded_;
}

void CudaBackend::StartStep(const StepBatch& batch,
                            absl::FunctionRef<void(const StepBatch&)> verbs) {
  if (!status().ok()) return;
  const bool repeats = cuda::StepImage::Repeats(batch);
  const StepBatch& step = repeats ? Padded(batch) : batch;
  results_->Begin(batch, static_cast<int>(step.logits.size()));
  if (!image_->Build(step, repeats, results_->evidence()).ok()) {
    memory_->Note("no memory for the tables of a step");
    return;
  }
  attention_->BeginStep(*image_);
  operands_.BeginStep();
  host_tier_.BeginStep(static_cast<int>(batch.slices.size()));
  const auto launch = [&] { verbs(step); };
  if (clock_) {
    clock_->Begin();
    launch();
  } else if (repeats) {
    graphs_.Run(image_->shape(), launch);
  } else {
    launch();
  }
  host_tier_.SendBack();
  results_->SendBack();
}

std::vector<VerbTimer::VerbTime> CudaBackend::TimeVerbs(absl::FunctionRef<void()> steps) {
  clock_.emplace(memory_.get());
  steps();
  std::vector<VerbTime> times = clock_->Take();
  clock_.reset();
  return times;
}

void CudaBackend::Embed(const StepBatch& batch, const PackedMatrix& table, float* out) {
  const auto& matrix = static_cast<const CudaMatrix&>(table);
  operands_.Forget(out);
  cuda::Embed(stream(), matrix.dtype(), matrix.data(), image_->step().tokens, results_->samples(),
              batch.num_rows, static_cast<int>(matrix.cols()), out);
  Check();
}

void CudaBackend::RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
                          float* out) {
  const int width = static_cast<int>(weight.size());
  cuda::RmsNorm(stream(), x, weight.data(), static_cast<float>(eps), num_rows, width, out,
                operands_.TwinOf(out, num_rows, width));
  Check();
}

// No product reads heads of q and k, so there is no twin.
void CudaBackend::NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                            int64_t row_stride, float* x) {
  cuda::NormHeads(stream(), weight.data(), static_cast<float>(eps), num_rows, num_heads,
                  static_cast<int>(weight.size()), row_stride, x);
  Check();
}

void CudaBackend::LayerNorm(const float* x, std::span<const float> weight,
                            std::span<const float> bias, double eps, int num_rows, float* out) {
  const int width = static_cast<int>(weight.size());
  cuda::LayerNorm(stream(), x, weight.data(), bias.empty() ? nullptr : bias.data(),
                  static_cast<float>(eps), num_rows, width, out,
                  operands_.TwinOf(out, num_rows, width));
  Check();
}

void CudaBackend::TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) {
  operands_.Forget(out);
  cuda::TakeRows(stream(), x, image_->step().samples, static_cast<int>(batch.logits.size()), width,
                 out);
  Check();
}

void CudaBackend::MatMul(const PackedMatrix& packed, const float* x, int num_rows,
                         std::span<const float> bias, Output output, float* y) {
  const auto& matrix = static_cast<const CudaMatrix&>(packed);
  const int inputs = static_cast<int>(matrix.cols());
  const int outputs = static_cast<int>(matrix.rows());
  const float* added = bias.empty() ? nullptr : bias.data();
  const bool add = output == Output::kAdd;
  operands_.Forget(y);
  // Which matrix it is costs more than all other verbs differ in.
  const std::string verb = clock_ ? absl::StrCat("MatMul ", outputs, "x", inputs) : "MatMul";
  if (cuda::GemvTakes(matrix.dtype(), num_rows, inputs)) {
    cuda::Gemv(stream(), matrix.dtype(), matrix.data(), x, num_rows, inputs, outputs, added, add,
               y);
    return Check(verb.c_str());
  }
  const void* operand = operands_.Get(matrix.dtype(), x, int64_t{num_rows} * inputs);
  if (operand == nullptr) return;
  memory_->NoteIn(verb.c_str(), cuda::MatMul(stream(), memory_->blas(),
                                             {matrix.dtype(), matrix.data(), operand, num_rows,
                                              inputs, outputs, added, add, y}));
  Check(verb.c_str());
}

void CudaBackend::SwiGlu(const float* gate_up, int num_rows, int width, float* out) {
  cuda::SwiGlu(stream(), gate_up, num_rows, width, out, operands_.TwinOf(out, num_rows, width));
  Check();
}

void CudaBackend::Gelu(GeluForm form, int num_rows, int width, float* x) {
  cuda::Gelu(stream(), form == GeluForm::kErf, int64_t{num_rows} * width, x,
             operands_.TwinOf(x, num_rows, width));
  Check();
}

void CudaBackend::StoreKv(const StepBatch&, int layer, const float* qkv) {
  if (!status().ok()) return;
  attention_->StoreKv(layer, qkv);
  Check();
}

void CudaBackend::SummarizeChunks(const StepBatch&, int layer, const float* qkv) {
  if (!status().ok()) return;
  attention_->SummarizeChunks(layer, qkv);
  Check();
}

void CudaBackend::Attend(const StepBatch&, int layer, const float* qkv, float* out) {
  if (!status().ok()) return;
  operands_.Forget(out);
  attention_->Attend(layer, qkv, out);
  Check();
}

void CudaBackend::SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) {
  if (!status().ok()) return;
  cuda::SampleTokens(stream(), image_->step().samples, static_cast<int>(batch.logits.size()),
                     logits, vocab_size, results_->samples(), results_->tops());
  Check();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int ordinal) {
  FOLIO_ASSIGN_OR_RETURN(auto memory, CudaMemory::Open(ordinal));
  return std::make_unique<CudaBackend>(std::move(memory));
}

}  // namespace folio
