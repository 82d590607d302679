#include "engine/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/step_image.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

using cuda::CudaMemory;
using cuda::Weight;

// Scores of one launch that chooses.
constexpr int64_t kScoreFloats = int64_t{16} << 20;
// Blocks per multiprocessor that a split of attention aims at, and visits that a block gets at
// least.
constexpr int64_t kBlocksPerMultiprocessor = 4;
constexpr int64_t kVisitsPerBlock = 4;
constexpr int64_t kMaxSplits = 64;

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

// Device memory that grows to what is asked for and stays.
class Workspace {
 public:
  explicit Workspace(CudaMemory* memory) : memory_(memory) {}
  // nullptr if there is no memory; the error stays with the memory's status.
  template <typename T>
  T* Get(int64_t count) {
    const auto floats =
        (count * static_cast<int64_t>(sizeof(T)) + 3) / static_cast<int64_t>(sizeof(float));
    if (buffer_.size() < floats) {
      buffer_ = Buffer();
      absl::StatusOr<Buffer> grown = Buffer::Create(memory_, floats);
      if (!grown.ok()) {
        memory_->Note("no memory for the workspace; lower --kv-bytes");
        return nullptr;
      }
      buffer_ = *std::move(grown);
    }
    return reinterpret_cast<T*>(buffer_.data());
  }

 private:
  CudaMemory* const memory_;
  Buffer buffer_;
};

// What heads choose, on the device.
class PicksSpace {
 public:
  explicit PicksSpace(CudaMemory* memory)
      : chosen_(memory), ranked_(memory), scores_(memory), counts_(memory) {}
  cuda::Picks Get(int64_t num_rows, int num_heads, int capacity) {
    const int64_t count = num_rows * num_heads;
    return {capacity, chosen_.Get<int64_t>(count * capacity),
            ranked_.Get<int64_t>(count * capacity), scores_.Get<float>(count * capacity),
            counts_.Get<int>(count)};
  }

 private:
  Workspace chosen_;
  Workspace ranked_;
  Workspace scores_;
  Workspace counts_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<CudaMemory> memory)
      : memory_(std::move(memory)),
        ids_(memory_.get()),
        converted_(memory_.get()),
        scores_(memory_.get()),
        partial_(memory_.get()),
        chunk_picks_(memory_.get()),
        token_picks_(memory_.get()) {}

  std::string name() const override { return absl::StrCat("cuda/", memory_->info().name); }
  int num_threads() const override { return 1; }
  Memory* memory() override { return memory_.get(); }
  absl::Status status() const override { return memory_->status(); }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const TensorView> parts) override;
  absl::Status SetupAttention(const AttentionSetup& setup) override;
  void Embed(const PackedMatrix& table, std::span<const int32_t> tokens, float* out) override;
  void RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
               float* out) override;
  void LayerNorm(const float* x, std::span<const float> weight, std::span<const float> bias,
                 double eps, int num_rows, float* out) override;
  void TakeRows(const float* x, std::span<const int> rows, int width, float* out) override;
  void MatMul(const PackedMatrix& matrix, const float* x, int num_rows, std::span<const float> bias,
              Output output, float* y) override;
  void SwiGlu(const float* gate_up, int num_rows, int width, float* out) override;
  void Gelu(GeluForm form, int num_rows, int width, float* x) override;
  void StoreKv(const StepBatch& batch, int layer, const float* qkv) override;
  void SummarizeChunks(const StepBatch& batch, int layer, const float* qkv) override;
  void Attend(const StepBatch& batch, int layer, const float* qkv, float* out) override;

 private:
  cuda::Stream stream() const { return memory_->stream(); }
  const int* Upload(std::span<const int32_t> values);
  void Check() { memory_->Note(cuda::LaunchError()); }
  void Choose(const StepBatch& batch, int layer, const float* qkv);
  // Calls choose for as many rows at a time as their scores have room for.
  template <typename F>
  void InBatches(int64_t candidates, F choose);
  void ReadPicks(const SequenceSlice& slice, int layer);
  int NumSplits() const;

  // Freed last: everything else lies in it.
  const std::unique_ptr<CudaMemory> memory_;
  Workspace ids_;
  Workspace converted_;
  Workspace scores_;
  Workspace partial_;
  PicksSpace chunk_picks_;
  PicksSpace token_picks_;
  std::optional<AttentionSetup> setup_;
  Buffer slopes_;
  cuda::Geometry geometry_ = {};
  std::optional<cuda::StepImage> image_;
  // Of the step; chunks chosen in layer 0 may serve later layers.
  cuda::Picks picks_ = {};
  cuda::Picks tokens_ = {};
};

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaBackend::Pack(std::span<const TensorView> parts) {
  int64_t rows = 0;
  for (const TensorView& part : parts) {
    if (part.rank != 2 || part.shape[1] != parts[0].shape[1] || part.dtype != parts[0].dtype) {
      return absl::InvalidArgumentError("the parts of a matrix differ in width or dtype");
    }
    rows += part.shape[0];
  }
  const int64_t cols = parts[0].shape[1];
  const int64_t bytes = rows * cols * DTypeBytes(parts[0].dtype);
  FOLIO_ASSIGN_OR_RETURN(
      Buffer data,
      Buffer::Create(memory_.get(), (bytes + 3) / static_cast<int64_t>(sizeof(float))));
  auto* at = reinterpret_cast<std::byte*>(data.data());
  for (const TensorView& part : parts) {
    memory_->Write(at, part.data, part.num_bytes());
    at += part.num_bytes();
  }
  FOLIO_RETURN_IF_ERROR(status());
  return std::make_unique<CudaMatrix>(std::move(data), parts[0].dtype, rows, cols);
}

absl::Status CudaBackend::SetupAttention(const AttentionSetup& setup) {
  const KvGeometry& g = setup.geometry;
  if (g.head_dim < 2 || g.head_dim % 2 != 0 || g.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", g.head_dim, ", must be even and at most ", kMaxHeadDim));
  }
  setup_ = setup;
  FOLIO_ASSIGN_OR_RETURN(slopes_, Buffer::CopyOf(memory_.get(), setup.alibi_slopes));
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
      .query_form = static_cast<cuda::QueryForm>(setup.coca_query),
      .key_bytes = g.key_bytes(),
      .slice_bytes = g.slice_bytes(),
      .frame_bytes = setup.kv.frame_bytes,
      .summary_frame_bytes = setup.summaries.frame_bytes,
      .kv = reinterpret_cast<const unsigned char*>(setup.kv.base),
      .summaries = reinterpret_cast<unsigned char*>(setup.summaries.base),
      .alibi_slopes = setup.alibi_slopes.empty() ? nullptr : slopes_.data(),
  };
  image_.emplace(memory_.get(), *setup_);
  return status();
}

const int* CudaBackend::Upload(std::span<const int32_t> values) {
  int* ids = ids_.Get<int>(static_cast<int64_t>(values.size()));
  if (ids != nullptr) {
    memory_->Write(reinterpret_cast<std::byte*>(ids), values.data(),
                   static_cast<int64_t>(values.size_bytes()));
  }
  return ids;
}

void CudaBackend::Embed(const PackedMatrix& table, std::span<const int32_t> tokens, float* out) {
  const auto& matrix = static_cast<const CudaMatrix&>(table);
  const int* ids = Upload(tokens);
  if (ids == nullptr) return;
  cuda::Embed(stream(), matrix.dtype(), matrix.data(), ids, static_cast<int>(tokens.size()),
              static_cast<int>(matrix.cols()), out);
  Check();
}

void CudaBackend::RmsNorm(const float* x, std::span<const float> weight, double eps, int num_rows,
                          float* out) {
  cuda::RmsNorm(stream(), x, weight.data(), static_cast<float>(eps), num_rows,
                static_cast<int>(weight.size()), out);
  Check();
}

void CudaBackend::LayerNorm(const float* x, std::span<const float> weight,
                            std::span<const float> bias, double eps, int num_rows, float* out) {
  cuda::LayerNorm(stream(), x, weight.data(), bias.empty() ? nullptr : bias.data(),
                  static_cast<float>(eps), num_rows, static_cast<int>(weight.size()), out);
  Check();
}

void CudaBackend::TakeRows(const float* x, std::span<const int> rows, int width, float* out) {
  const int* ids = Upload(rows);
  if (ids == nullptr) return;
  cuda::TakeRows(stream(), x, ids, static_cast<int>(rows.size()), width, out);
  Check();
}

void CudaBackend::MatMul(const PackedMatrix& packed, const float* x, int num_rows,
                         std::span<const float> bias, Output output, float* y) {
  const auto& matrix = static_cast<const CudaMatrix&>(packed);
  const int inputs = static_cast<int>(matrix.cols());
  const int outputs = static_cast<int>(matrix.rows());
  const void* operand = x;
  if (matrix.dtype() != Weight::kF32) {
    const int64_t count = int64_t{num_rows} * inputs;
    auto* converted = converted_.Get<uint16_t>(count);
    if (converted == nullptr) return;
    cuda::Convert(stream(), x, count, matrix.dtype(), converted);
    operand = converted;
  }
  memory_->Note(cuda::MatMul(stream(), memory_->blas(), matrix.dtype(), matrix.data(), operand,
                             num_rows, inputs, outputs, output == Output::kAdd, y));
  if (!bias.empty()) cuda::AddBias(stream(), bias.data(), num_rows, outputs, y);
  Check();
}

void CudaBackend::SwiGlu(const float* gate_up, int num_rows, int width, float* out) {
  cuda::SwiGlu(stream(), gate_up, num_rows, width, out);
  Check();
}

void CudaBackend::Gelu(GeluForm form, int num_rows, int width, float* x) {
  cuda::Gelu(stream(), form == GeluForm::kErf, int64_t{num_rows} * width, x);
  Check();
}

void CudaBackend::StoreKv(const StepBatch& batch, int layer, const float* qkv) {
  if (layer == 0) {
    if (!image_->Build(batch).ok()) memory_->Note("no memory for the tables of a step");
    for (const SequenceSlice& slice : batch.slices) {
      if (slice.picks == nullptr || !slice.plan->selection.enabled()) continue;
      slice.picks->picks.assign(int64_t{geometry_.num_layers} * geometry_.num_heads *
                                    slice.plan->selection.num_free_picks,
                                {});
    }
  }
  if (!status().ok()) return;
  cuda::StoreKv(stream(), geometry_, image_->step(), layer, qkv);
  Check();
}

void CudaBackend::SummarizeChunks(const StepBatch&, int layer, const float* qkv) {
  if (!status().ok() || image_->max_chunk_tokens() == 0) return;
  cuda::Summarize(stream(), geometry_, image_->step(), image_->tasks(), image_->num_tasks(),
                  image_->max_chunk_tokens(), layer, qkv);
  cuda::KeepPending(stream(), geometry_, image_->step(), layer, qkv);
  Check();
}

template <typename F>
void CudaBackend::InBatches(int64_t candidates, F choose) {
  const int num_rows = image_->step().num_rows;
  const int64_t floats_per_row = candidates * geometry_.num_heads;
  const int batch = static_cast<int>(
      std::clamp<int64_t>(kScoreFloats / std::max<int64_t>(1, floats_per_row), 1, num_rows));
  float* scores = scores_.Get<float>(batch * floats_per_row);
  if (scores == nullptr) return;
  for (int row = 0; row < num_rows; row += batch) {
    choose(cuda::ChooseArgs{row, std::min(batch, num_rows - row), scores, candidates});
  }
}

void CudaBackend::Choose(const StepBatch& batch, int layer, const float* qkv) {
  const cuda::Step& step = image_->step();
  if (image_->max_chunk_tokens() > 0) {
    if (layer == 0) {
      picks_ = chunk_picks_.Get(step.num_rows, geometry_.num_heads,
                                std::max(1, image_->max_chunk_picks()));
    }
    InBatches(image_->max_chunk_candidates() + 1, [&](const cuda::ChooseArgs& args) {
      cuda::ChooseChunks(stream(), geometry_, step, picks_, args, layer, qkv);
    });
    for (const SequenceSlice& slice : batch.slices) ReadPicks(slice, layer);
  }
  if (image_->max_token_picks() > 0) {
    if (layer == 0) {
      tokens_ = token_picks_.Get(step.num_rows, geometry_.num_heads, image_->max_token_picks());
    }
    InBatches(std::max<int64_t>(1, image_->max_token_candidates()),
              [&](const cuda::ChooseArgs& args) {
                cuda::ChooseTokens(stream(), geometry_, step, tokens_, args, layer, qkv);
              });
  }
}

// The choices for the last row of a slice, where somebody asks for them: the one thing that visits
// the host, and waits.
void CudaBackend::ReadPicks(const SequenceSlice& slice, int layer) {
  const ChunkSelection& select = slice.plan->selection;
  if (slice.picks == nullptr || !select.enabled()) return;
  if (select.share == ChunkSelection::Share::kLayers && layer > 0) return;
  const int num_heads = geometry_.num_heads;
  const int64_t first = int64_t{slice.row_begin + slice.num_rows - 1} * num_heads;
  std::vector<int> counts(num_heads);
  std::vector<int64_t> ranked(int64_t{num_heads} * picks_.capacity);
  std::vector<float> scores(ranked.size());
  const auto read = [&](auto* to, const auto* from, int64_t count) {
    memory_->ReadBytes(to, from, count * static_cast<int64_t>(sizeof(*to)));
  };
  const auto num_ranked = static_cast<int64_t>(ranked.size());
  read(counts.data(), picks_.counts + first, num_heads);
  read(ranked.data(), picks_.ranked + first * picks_.capacity, num_ranked);
  read(scores.data(), picks_.scores + first * picks_.capacity, num_ranked);
  for (int head = 0; head < num_heads; ++head) {
    ChunkPicks::Pick* to =
        &slice.picks->picks[(int64_t{layer} * num_heads + head) * select.num_free_picks];
    for (int n = 0; n < counts[head]; ++n) {
      to[n] = {ranked[head * picks_.capacity + n], scores[head * picks_.capacity + n]};
    }
  }
}

int CudaBackend::NumSplits() const {
  const int64_t blocks = int64_t{image_->step().num_rows} * geometry_.num_kv_heads;
  const int64_t wanted = kBlocksPerMultiprocessor * memory_->info().num_multiprocessors / blocks;
  const int64_t useful = image_->max_visits() / kVisitsPerBlock;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, useful), 1, kMaxSplits));
}

void CudaBackend::Attend(const StepBatch& batch, int layer, const float* qkv, float* out) {
  if (!status().ok()) return;
  Choose(batch, layer, qkv);
  const int splits = NumSplits();
  const cuda::Step& step = image_->step();
  float* partial = nullptr;
  if (splits > 1) {
    partial = partial_.Get<float>(int64_t{step.num_rows} * geometry_.num_heads * splits *
                                  (geometry_.head_dim + 2));
  }
  if (!status().ok()) return;
  cuda::Attend(stream(), geometry_, step, picks_, tokens_, layer, qkv, splits, partial, out);
  Check();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int ordinal) {
  FOLIO_ASSIGN_OR_RETURN(auto memory, CudaMemory::Open(ordinal));
  return std::make_unique<CudaBackend>(std::move(memory));
}

}  // namespace folio
