#include "engine/backend/cuda/cuda_attention.h"

#include <algorithm>
#include <bit>

#include "engine/backend/cuda/kernels.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

// Scores of one launch that chooses, and scratch of one that makes summaries.
constexpr int64_t kScoreFloats = int64_t{16} << 20;
// States of one launch of tiles that choose.
constexpr int64_t kStateFloats = int64_t{48} << 20;
// Blocks per multiprocessor that a split of attention aims at, and visits that a block gets at
// least.
constexpr int64_t kBlocksPerMultiprocessor = 4;
constexpr int64_t kVisitsPerBlock = 4;
constexpr int64_t kMaxSplits = 64;
// What requests usually choose, and choose from: room for it is taken at the start.
constexpr int kUsualPicks = 16;
constexpr int64_t kUsualCandidates = 512;

// Floats (and ints) that usual requests need.
struct UsualSizes {
  UsualSizes(const KvGeometry& g, int max_step_rows, const DeviceInfo& device) {
    const int64_t choices = int64_t{max_step_rows} * g.num_heads;
    const int64_t blocks = kBlocksPerMultiprocessor * device.num_multiprocessors;
    scores = std::min(kScoreFloats, choices * kUsualCandidates);
    partial = blocks * (g.num_heads / g.num_kv_heads) * (g.head_dim + 2);
    states = std::min(kStateFloats, choices * (kUsualPicks + 1) * (g.head_dim + 2));
    lists = choices * kUsualPicks + 4 * kUsualCandidates * g.num_heads;
  }
  int64_t scores = 0;
  int64_t partial = 0;
  int64_t states = 0;
  int64_t lists = 0;
};

}  // namespace

absl::Status CudaAttention::PicksSpace::Reserve(int64_t num_rows, int num_heads, int capacity) {
  const int64_t count = num_rows * num_heads;
  FOLIO_RETURN_IF_ERROR(chosen.Reserve<int64_t>(count * capacity));
  FOLIO_RETURN_IF_ERROR(ranked.Reserve<int64_t>(count * capacity));
  FOLIO_RETURN_IF_ERROR(scores.Reserve<float>(count * capacity));
  return counts.Reserve<int>(count);
}

Picks CudaAttention::PicksSpace::Get(int64_t num_rows, int num_heads, int capacity) {
  const int64_t count = num_rows * num_heads;
  return {capacity, chosen.Get<int64_t>(count * capacity), ranked.Get<int64_t>(count * capacity),
          scores.Get<float>(count * capacity), counts.Get<int>(count)};
}

CudaAttention::CudaAttention(CudaMemory* memory, const AttentionSetup& setup,
                             const Geometry& geometry)
    : memory_(memory),
      geometry_(geometry),
      max_step_rows_(setup.max_step_rows),
      scores_(memory),
      partial_(memory),
      states_(memory),
      lists_(memory),
      chunk_space_(memory),
      token_space_(memory) {
  const UsualSizes sizes(setup.geometry, setup.max_step_rows, memory->info());
  scores_.Get<float>(sizes.scores);
  partial_.Get<float>(sizes.partial);
  states_.Get<float>(sizes.states);
  lists_.Get<int>(sizes.lists);
  chunk_space_.Get(setup.max_step_rows, geometry_.num_heads, kUsualPicks);
}

int64_t CudaAttention::WorkspaceBytes(const KvGeometry& geometry, int max_step_rows,
                                      const DeviceInfo& device) {
  const UsualSizes sizes(geometry, max_step_rows, device);
  const int64_t choices = int64_t{max_step_rows} * geometry.num_heads;
  const int64_t pick_bytes = 2 * sizeof(int64_t) + sizeof(float);
  return 4 * (sizes.scores + sizes.partial + sizes.states + sizes.lists) +
         choices * (kUsualPicks * pick_bytes + 4);
}

absl::Status CudaAttention::Reserve(const StepShape& shape) {
  const int heads = geometry_.num_heads;
  // As InBatches asks for them, of candidates that are padded or not.
  const int64_t candidates = static_cast<int64_t>(std::bit_ceil(
      static_cast<uint64_t>(std::max(shape.chunk_candidates, shape.token_candidates))));
  if (shape.max_chunk_tokens > 0 || shape.token_picks > 0) {
    const int64_t of_row = candidates * heads;
    FOLIO_RETURN_IF_ERROR(
        scores_.Reserve<float>(std::max(of_row, std::min(kScoreFloats, max_step_rows_ * of_row))));
  }
  if (shape.token_picks > 0) {
    FOLIO_RETURN_IF_ERROR(token_space_.Reserve(max_step_rows_, heads, shape.token_picks));
  }
  if (shape.max_chunk_tokens == 0) return absl::OkStatus();
  FOLIO_RETURN_IF_ERROR(scores_.Reserve<float>(
      SummaryBatch(shape) * SummaryScratchFloats(geometry_, shape.max_chunk_tokens)));
  const int capacity = std::max(kUsualPicks, shape.chunk_picks);
  FOLIO_RETURN_IF_ERROR(chunk_space_.Reserve(max_step_rows_, heads, capacity));
  if (shape.num_choosing_rows == 0) return absl::OkStatus();
  // As AttendTiles does: of one KV head, or of as many as have room.
  const int64_t all = StateFloats(shape.num_choosing_rows, heads, capacity);
  const int64_t of_kv_head = StateFloats(shape.num_choosing_rows, geometry_.group(), capacity);
  FOLIO_RETURN_IF_ERROR(states_.Reserve<float>(std::max(of_kv_head, std::min(kStateFloats, all))));
  return lists_.Reserve<int>(ListInts(shape, heads, capacity));
}

void CudaAttention::BeginStep(const StepImage& image) {
  image_ = &image;
  const StepShape& shape = image.shape();
  if (shape.max_chunk_tokens > 0) {
    picks_ = chunk_space_.Get(shape.num_rows, geometry_.num_heads,
                              std::max(kUsualPicks, shape.chunk_picks));
  }
  if (shape.token_picks > 0) {
    tokens_ = token_space_.Get(shape.num_rows, geometry_.num_heads, shape.token_picks);
  }
}

int CudaAttention::SummaryBatch(const StepShape& shape) const {
  const int64_t floats = SummaryScratchFloats(geometry_, shape.max_chunk_tokens);
  return static_cast<int>(
      std::clamp<int64_t>(kScoreFloats / floats, 1, std::max(1, shape.num_chunk_tasks)));
}

void CudaAttention::StoreKv(int layer, const float* qkv) {
  cuda::StoreKv(memory_->stream(), geometry_, image_->step(), layer, qkv);
}

void CudaAttention::SummarizeChunks(int layer, const float* qkv) {
  const StepShape& shape = image_->shape();
  if (shape.max_chunk_tokens == 0) return;
  // The scores of the layer come later.
  const int batch = SummaryBatch(shape);
  float* scratch =
      scores_.Get<float>(batch * SummaryScratchFloats(geometry_, shape.max_chunk_tokens));
  if (scratch == nullptr) return;
  for (int first = 0; first < shape.num_chunk_tasks; first += batch) {
    Summarize(memory_->stream(), geometry_, image_->step(), image_->chunk_tasks() + first,
              std::min(batch, shape.num_chunk_tasks - first), shape.max_chunk_tokens, layer, qkv,
              scratch);
  }
  KeepPending(memory_->stream(), geometry_, image_->step(), layer, qkv);
}

template <typename F>
void CudaAttention::InBatches(int64_t candidates, F choose) {
  const int num_rows = image_->shape().num_rows;
  const int64_t floats_per_row = candidates * geometry_.num_heads;
  const int batch =
      static_cast<int>(std::clamp<int64_t>(kScoreFloats / floats_per_row, 1, num_rows));
  float* scores = scores_.Get<float>(batch * floats_per_row);
  if (scores == nullptr) return;
  for (int row = 0; row < num_rows; row += batch) {
    choose(ChooseArgs{row, std::min(batch, num_rows - row), scores, candidates});
  }
}

void CudaAttention::ChooseChunks(int layer, const float* qkv) {
  const StepShape& shape = image_->shape();
  if (shape.max_chunk_tokens == 0) return;
  InBatches(shape.chunk_candidates, [&](const ChooseArgs& args) {
    ScoreChunks(memory_->stream(), geometry_, image_->step(), args, layer, qkv);
    cuda::ChooseChunks(memory_->stream(), geometry_, image_->step(), picks_, args, layer);
  });
}

void CudaAttention::ChooseTokens(int layer, const float* qkv) {
  const StepShape& shape = image_->shape();
  if (shape.token_picks == 0) return;
  InBatches(shape.token_candidates, [&](const ChooseArgs& args) {
    ScoreTokens(memory_->stream(), geometry_, image_->step(), args, layer, qkv);
    cuda::ChooseTokens(memory_->stream(), geometry_, image_->step(), tokens_, args, layer);
  });
}

void CudaAttention::Attend(int layer, const float* qkv, float* out) {
  ChooseChunks(layer, qkv);
  if (geometry_.slices.num_slots > 0) {
    const StepShape& shape = image_->shape();
    BringSlices(memory_->stream(), geometry_, image_->step(), picks_, layer,
                std::max(shape.visits, shape.token_candidates));
  }
  ChooseTokens(layer, qkv);
  if (!memory_->status().ok()) return;
  AttendRows(layer, qkv, out);
  if (image_->shape().num_tiles > 0) AttendTiles(layer, qkv, out);
}

int CudaAttention::NumSplits(int num_rows) const {
  const int64_t blocks = int64_t{num_rows} * geometry_.num_kv_heads;
  const int64_t wanted = kBlocksPerMultiprocessor * memory_->info().num_multiprocessors / blocks;
  const int64_t useful = image_->shape().visits / kVisitsPerBlock;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, useful), 1, kMaxSplits));
}

void CudaAttention::AttendRows(int layer, const float* qkv, float* out) {
  const Step& step = image_->step();
  const StepShape& shape = image_->shape();
  const auto partial = [&](int num_rows, int splits) -> float* {
    const int64_t states = int64_t{num_rows} * geometry_.num_heads * splits;
    return splits == 1 ? nullptr : partial_.Get<float>(states * (geometry_.head_dim + 2));
  };
  if (shape.num_plain_rows > 0) {
    const int splits = NumSplits(shape.num_plain_rows);
    AttendPlainRows(memory_->stream(), geometry_, step, picks_, tokens_, layer, qkv, splits,
                    partial(shape.num_plain_rows, splits), out);
  }
  if (shape.num_tensor_rows > 0) {
    const int splits = NumSplits(shape.num_tensor_rows);
    AttendTensorRows(memory_->stream(), geometry_, step, picks_, tokens_, layer, qkv, splits,
                     partial(shape.num_tensor_rows, splits), out);
  }
}

int64_t CudaAttention::StateFloats(int64_t num_rows, int num_heads, int capacity) const {
  return num_rows * num_heads * (capacity + 1) * (geometry_.head_dim + 2);
}

int64_t CudaAttention::ListInts(const StepShape& shape, int num_heads, int capacity) {
  return int64_t{num_heads} *
         (4 * int64_t{shape.num_lists} + 2 + int64_t{shape.num_choosing_rows} * capacity);
}

ChunkLists CudaAttention::ListsFor(const StepShape& shape, int num_heads, int capacity) {
  const int64_t lists = int64_t{num_heads} * shape.num_lists;
  int* base = lists_.Get<int>(ListInts(shape, num_heads, capacity));
  return {base, base + lists, base + 2 * lists, base + 3 * lists + num_heads,
          base + 4 * lists + 2 * num_heads};
}

// Some KV heads at a time, as many as the states have room for.
void CudaAttention::AttendTiles(int layer, const float* qkv, float* out) {
  const StepShape& shape = image_->shape();
  const int group = geometry_.group();
  const bool choosing = shape.num_choosing_rows > 0;
  int heads = geometry_.num_kv_heads;
  if (choosing) {
    const int64_t per_head = StateFloats(shape.num_choosing_rows, group, picks_.capacity);
    heads = static_cast<int>(std::clamp<int64_t>(kStateFloats / per_head, 1, heads));
  }
  TileArgs args = {};
  args.g = geometry_;
  args.step = image_->step();
  args.picks = picks_;
  args.layer = layer;
  args.qkv = qkv;
  args.out = out;
  for (int first = 0; first < geometry_.num_kv_heads; first += heads) {
    args.first_kv_head = first;
    args.num_kv_heads = std::min(heads, geometry_.num_kv_heads - first);
    const int num_heads = args.num_kv_heads * group;
    if (choosing) {
      args.states =
          states_.Get<float>(StateFloats(shape.num_choosing_rows, num_heads, picks_.capacity));
      args.lists = ListsFor(shape, num_heads, picks_.capacity);
      if (!memory_->status().ok()) return;
    }
    cuda::AttendTiles(memory_->stream(), args);
    if (!choosing) continue;
    memory_->Note(Zero(memory_->stream(), args.lists.lengths,
                       int64_t{num_heads} * shape.num_lists * static_cast<int64_t>(sizeof(int))));
    AttendPicks(memory_->stream(), args, memory_->info().num_multiprocessors);
  }
}

}  // namespace folio::cuda
