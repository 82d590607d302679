#include "engine/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/slice_rotations.h"
#include "engine/backend/cpu/amx_probe.h"
#include "engine/backend/cpu/attention_context.h"
#include "engine/backend/cpu/attention_parts.h"
#include "engine/backend/cpu/attention_waves.h"
#include "engine/backend/cpu/chunk_summary.h"
#include "engine/backend/cpu/cpu_attention.h"
#include "engine/backend/cpu/cpu_matrix.h"
#include "engine/backend/cpu/cpu_product.h"
#include "engine/backend/cpu/expert_rows.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kv_writer.h"
#include "engine/backend/cpu/rope_tables.h"
#include "engine/backend/cpu/row_functions.h"
#include "engine/base/half.h"
#include "engine/base/splitmix.h"
#include "engine/base/status_macros.h"
#include "engine/base/worker_pool.h"
#include "engine/sampling/sampler.h"
#include "engine/types/geometry_check.h"

namespace folio {
namespace {

// Rows from which row-wise verbs are worth a parallel loop.
constexpr int kParallelRows = 8;

// Everything about positions that outlives a step, and what a step is prepared with.
struct AttentionState {
  AttentionState(const AttentionSetup& s, int num_threads)
      : setup(s), tables(s.geometry.page_tokens), workers(num_threads), summarizers(num_threads) {}

  const AttentionSetup setup;
  RopeTableCache tables;
  Rotary dynamic_rotary;                      // of the slice that is prepared
  std::vector<CpuAttentionContext> contexts;  // one per slice of the step
  SharedPicks shared_picks;
  std::vector<AttentionWorker> workers;
  AttentionParts parts;
  AttentionWaves waves;
  std::vector<ChunkSummarizer> summarizers;
  std::vector<AttentionWorker::Block> blocks;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, int num_threads)
      : isa_(isa), kernels_(cpu::KernelsFor(isa)), pool_(num_threads), product_(kernels_, &pool_) {}

  std::string name() const override {
    std::string kernels = absl::StrCat("cpu/", IsaName(isa_));
    const AmxState unit = ProbeAmx();
    if (unit == AmxState::kAbsent || unit == AmxState::kWorks) return kernels;
    return absl::StrCat(kernels, " (", AmxStateText(unit), ")");
  }
  int num_threads() const override { return pool_.num_threads(); }
  Memory* memory() override { return HostMemory(); }
  // Prompts are as fast per row from 64 rows on, on the matrix unit from 256 (docs/performance.md):
  // steps need be no longer than they are worth waking the threads for.
  int usual_step_rows() const override {
    const int per_thread = std::max(64, kernels_.bf16_rows_at_once / 2);
    return std::clamp(per_thread * num_threads(), 2 * per_thread, 512);
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts,
                                                     const WeightFormat& format) override {
    FOLIO_ASSIGN_OR_RETURN(auto matrix, CpuMatrix::Create(parts, format, &pool_));
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }
  std::string packed_layout() const override { return cpu::kPanelLayout; }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> ReadPacked(const PackedShape& shape,
                                                           int64_t num_bytes, int64_t part_bytes,
                                                           PackedReader read) override {
    FOLIO_ASSIGN_OR_RETURN(auto matrix,
                           CpuMatrix::Read(shape, num_bytes, part_bytes, read, &pool_));
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRandom(int64_t rows, int64_t cols,
                                                           uint64_t seed, float deviation,
                                                           const WeightFormat& format) override;
  bool seals_pages() const override { return true; }
  // What is done once for all tokens of a page weighs half of what it does at 64.
  int preferred_page_tokens() const override { return 128; }
  bool scores_coarsely() const override { return true; }
  bool packs_integers() const override { return true; }
  absl::Status SetupAttention(const AttentionSetup& setup) override;
  void StartStep(const StepBatch& batch, absl::FunctionRef<void(const StepBatch&)> verbs) override {
    samples_.clear();
    verbs(batch);
  }
  void FinishStep(std::vector<Sample>* samples) override { samples->swap(samples_); }
  void Embed(const StepBatch& batch, const PackedMatrix& table, float* out) override;
  void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
               float* out) override;
  void TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) override;
  void MatMul(const PackedMatrix& matrix, const float* x, int num_rows, std::span<const float> bias,
              Output output, float* y) override {
    product_.Do(static_cast<const CpuMatrix&>(matrix), x, num_rows, bias, output, y);
  }
  void NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                 int64_t row_stride, float* x) override;
  void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                 double eps, int num_rows, float* out) override;
  void SwiGlu(const float* gate_up, int num_rows, int width, float* out) override;
  void Gelu(GeluForm form, int num_rows, int width, float* x) override;
  bool mixes_experts() const override { return true; }
  void MixExperts(const ExpertMix& mix, float* out) override;
  bool has_layer_views() const override { return true; }
  void AddRmsNorm(float* x, std::span<const float> weight, double eps, int num_rows,
                  float* out) override;
  void GeGlu(const float* gate_up, int num_rows, int width, float* out) override;
  void Scale(float factor, int64_t count, float* x) override;
  void SoftCap(float cap, int64_t count, float* x) override;
  void StoreKv(const StepBatch& batch, int layer, const float* qkv) override;
  void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) override;
  void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) override;
  void SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) override;

 private:
  void ForRows(int num_rows, const std::function<void(int)>& body);
  void PrepareStep(const StepBatch& batch);
  // The tables of `rotary` with every rotation that a row of the slice may need.
  RopeTables* GrownTables(const SequenceSlice& slice, const Rotary& rotary);

  const Isa isa_;
  const cpu::Kernels& kernels_;
  WorkerPool pool_;
  CpuProduct product_;
  std::vector<Sampler> samplers_;  // one per thread
  std::vector<Sample> samples_;
  ExpertRows expert_rows_;
  std::unique_ptr<AttentionState> attention_;
};

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuBackend::PackRandom(int64_t rows, int64_t cols,
                                                                     uint64_t seed, float deviation,
                                                                     const WeightFormat& format) {
  std::vector<uint16_t> values(rows * cols);
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      const uint64_t z = SplitMix64(seed * 0xd1b54a32d192ed03u + (i + 1) * 0x9e3779b97f4a7c15u);
      const float uniform = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
      values[i] = FloatToBf16(1.7320508f * deviation * uniform);
    }
  });
  TensorView view;
  view.data = values.data();
  view.dtype = DType::kBf16;
  view.rank = 2;
  view.shape[0] = rows;
  view.shape[1] = cols;
  return Pack(std::span(&view, 1), format);
}

absl::Status CpuBackend::SetupAttention(const AttentionSetup& setup) {
  FOLIO_RETURN_IF_ERROR(CheckGeometry(setup.geometry));
  attention_ = std::make_unique<AttentionState>(setup, pool_.num_threads());
  return absl::OkStatus();
}

void CpuBackend::ForRows(int num_rows, const std::function<void(int)>& body) {
  if (num_rows < kParallelRows) {
    for (int row = 0; row < num_rows; ++row) body(row);
    return;
  }
  pool_.ParallelFor(num_rows, [&](int64_t row, int) { body(static_cast<int>(row)); });
}

void CpuBackend::Embed(const StepBatch& batch, const PackedMatrix& table, float* out) {
  const auto& matrix = static_cast<const CpuMatrix&>(table);
  ForRows(batch.num_rows,
          [&](int row) { matrix.ReadRow(batch.tokens[row], out + row * matrix.cols()); });
}

void CpuBackend::TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) {
  for (const LogitsTask& task : batch.logits) {
    out = std::copy_n(x + int64_t{task.row} * width, width, out);
  }
}

void CpuBackend::SampleTokens(const StepBatch& batch, const float* logits, int vocab_size) {
  samples_.resize(batch.logits.size());
  samplers_.resize(pool_.num_threads());
  pool_.ParallelFor(static_cast<int64_t>(samples_.size()), [&](int64_t i, int thread) {
    const std::span<const float> row(logits + i * vocab_size, vocab_size);
    samples_[i] = samplers_[thread].Do(batch.logits[i], row);
  });
}

void CpuBackend::RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
                         float* out) {
  const int64_t width = static_cast<int64_t>(weight.size());
  ForRows(num_rows, [&](int row) {
    kernels_.rms_norm(x + row * width, weight.data(), eps, static_cast<int>(width),
                      out + row * width);
  });
}

void CpuBackend::NormHeads(std::span<const float> weight, double eps, int num_rows, int num_heads,
                           int64_t row_stride, float* x) {
  const int width = static_cast<int>(weight.size());
  ForRows(num_rows, [&](int row) {
    for (int head = 0; head < num_heads; ++head) {
      float* const at = x + row * row_stride + int64_t{head} * width;
      kernels_.rms_norm(at, weight.data(), eps, width, at);
    }
  });
}

void CpuBackend::AddRmsNorm(float* x, std::span<const float> weight, double eps, int num_rows,
                            float* out) {
  const int64_t width = static_cast<int64_t>(weight.size());
  ForRows(num_rows, [&](int row) {
    float* const from = x + row * width;
    kernels_.rms_norm(from, weight.data(), eps, static_cast<int>(width), from);
    for (int64_t i = 0; i < width; ++i) out[row * width + i] += from[i];
  });
}

void CpuBackend::LayerNorm(const float* x, std::span<const float> weight,
                           std::span<const float> bias, double eps, int num_rows, float* out) {
  const int64_t width = static_cast<int64_t>(weight.size());
  ForRows(num_rows,
          [&](int row) { LayerNormRow(x + row * width, weight, bias, eps, out + row * width); });
}

void CpuBackend::Gelu(GeluForm form, int num_rows, int width, float* x) {
  ForRows(num_rows, [&](int row) {
    float* const values = x + int64_t{row} * width;
    for (int i = 0; i < width; ++i) {
      values[i] = form == GeluForm::kErf ? GeluErf(values[i]) : GeluTanh(values[i]);
    }
  });
}

void CpuBackend::GeGlu(const float* gate_up, int num_rows, int width, float* out) {
  ForRows(num_rows, [&](int row) {
    const float* gate = gate_up + int64_t{row} * 2 * width;
    for (int i = 0; i < width; ++i) {
      out[int64_t{row} * width + i] = GeluTanh(gate[i]) * gate[width + i];
    }
  });
}

void CpuBackend::Scale(float factor, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void CpuBackend::SoftCap(float cap, int64_t count, float* x) {
  constexpr int64_t kPart = 4096;
  pool_.ParallelFor((count + kPart - 1) / kPart, [&](int64_t part, int) {
    SoftCapRow(cap, std::min(kPart, count - part * kPart), x + part * kPart);
  });
}

void CpuBackend::SwiGlu(const float* gate_up, int num_rows, int width, float* out) {
  ForRows(num_rows, [&](int row) {
    const float* gate = gate_up + int64_t{row} * 2 * width;
    kernels_.swiglu(gate, gate + width, width, out + int64_t{row} * width);
  });
}

// Experts in ascending order, so that a row's sum does not depend on the rows beside it.
void CpuBackend::MixExperts(const ExpertMix& mix, float* out) {
  const int num_experts = static_cast<int>(mix.experts.size());
  expert_rows_.Choose(mix.scores, mix.num_rows, num_experts, mix.num_chosen);
  for (int e = 0; e < num_experts; ++e) {
    const std::span<const ExpertRows::Entry> entries = expert_rows_.of(e);
    if (entries.empty()) continue;
    const auto& [up, down] = mix.experts[e];
    const int num_rows = static_cast<int>(entries.size());
    const int64_t hidden = up->cols();
    ForRows(num_rows, [&](int i) {
      std::copy_n(mix.x + entries[i].row * hidden, hidden, mix.inputs + i * hidden);
    });
    MatMul(*up, mix.inputs, num_rows, {}, Output::kStore, mix.up);
    SwiGlu(mix.up, num_rows, static_cast<int>(down->cols()), mix.activated);
    MatMul(*down, mix.activated, num_rows, {}, Output::kStore, mix.outputs);
    ForRows(num_rows, [&](int i) {
      const float* from = mix.outputs + i * hidden;
      float* to = out + entries[i].row * hidden;
      for (int64_t d = 0; d < hidden; ++d) to[d] += entries[i].weight * from[d];
    });
  }
}

RopeTables* CpuBackend::GrownTables(const SequenceSlice& slice, const Rotary& rotary) {
  const AttentionSetup& setup = attention_->setup;
  const int64_t page = setup.geometry.page_tokens;
  RopeTables* tables = attention_->tables.Get(rotary);
  // A query and a page may lie one page further apart than their tokens do.
  tables->pages.Grow(RotationReach(slice, setup.coca_query) / page + 2);
  tables->positions.Grow(NumRotationOffsets(*slice.plan, setup.geometry.page_tokens));
  for (const AttentionStage& stage : slice.plan->stages) {
    if (stage.distance == AttentionStage::Distance::kPinned) {
      tables->AddFixed(stage.distance_limit);
    }
  }
  return tables;
}

void CpuBackend::PrepareStep(const StepBatch& batch) {
  const KvGeometry& g = attention_->setup.geometry;
  attention_->tables.BeginStep();
  attention_->contexts.clear();
  SharedPicks& shared_picks = attention_->shared_picks;
  shared_picks.picks_per_head = 0;
  for (const SequenceSlice& slice : batch.slices) {
    const AttentionPlan& plan = *slice.plan;
    CpuAttentionContext context;
    context.setup = &attention_->setup;
    context.kernels = &kernels_;
    context.slice = &slice;
    context.shared_picks = &shared_picks;
    const Rotary& queries =
        QueryRotary(slice, attention_->setup.rotary, g.head_dim, &attention_->dynamic_rotary);
    context.rope = GrownTables(slice, queries);
    const std::optional<Rotary>& of_windows = attention_->setup.views.window_rotary;
    if (of_windows) context.window_rope = GrownTables(slice, *of_windows);
    const Rotary& summaries = SummaryRotary(slice, queries);
    context.summary_rope = &summaries == &queries ? context.rope : GrownTables(slice, summaries);
    attention_->contexts.push_back(context);
    if (!plan.selection.enabled()) continue;
    const int64_t picks = plan.selection.num_free_picks;
    if (slice.picks != nullptr) slice.picks->picks.assign(g.num_layers * g.num_heads * picks, {});
    if (plan.selection.share == ChunkSelection::Share::kLayers) {
      shared_picks.picks_per_head =
          std::max(shared_picks.picks_per_head, plan.selection.num_free_picks);
    }
  }
  const size_t queries = static_cast<size_t>(batch.num_rows) * g.num_heads;
  shared_picks.picks.resize(queries * shared_picks.picks_per_head);
  shared_picks.counts.resize(shared_picks.picks_per_head > 0 ? queries : 0);
}

void CpuBackend::StoreKv(const StepBatch& batch, int layer, const float* qkv) {
  if (layer == 0) PrepareStep(batch);
  WriteKv(attention_->contexts, &pool_, layer, qkv);
}

void CpuBackend::SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) {
  const int num_heads = attention_->setup.geometry.num_heads;
  const int64_t num_tasks = static_cast<int64_t>(batch.slices.size()) * num_heads;
  pool_.ParallelFor(num_tasks, [&](int64_t task, int thread) {
    const CpuAttentionContext& context = attention_->contexts[task / num_heads];
    if (!context.plan().selection.enabled()) return;
    attention_->summarizers[thread].Run(context, layer, static_cast<int>(task % num_heads), qkv);
  });
}

void CpuBackend::Attend(const StepBatch& /*batch*/, int layer, const float* qkv, float* out) {
  ListBlocks(attention_->contexts, layer, pool_.num_threads(), &attention_->blocks);
  if (SliceSource* slices = attention_->setup.slices; slices != nullptr) {
    return attention_->waves.Run(attention_->blocks, slices, &pool_, qkv, out);
  }
  attention_->parts.Run(attention_->blocks, attention_->workers, &pool_, qkv, out);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  if (options.num_threads < 1 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.num_threads, ", must be in [1, 1024]"));
  }
  const Isa isa = options.isa.value_or(BestIsa());
  if (!CpuSupports(isa)) {
    return absl::InvalidArgumentError(
        absl::StrCat("this CPU has no ", IsaName(isa), " instructions"));
  }
  return std::make_unique<CpuBackend>(isa, options.num_threads);
}

}  // namespace folio
