#include "engine/backend/cuda/step_image.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/attention/visible_keys.h"
#include "engine/backend/cuda/tensor_shapes.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

constexpr size_t kAlignment = 16;

// Rows of a step that is repeated, padded to one of these.
constexpr int kBuckets[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};

// Fewer rows of one sequence do not fill a tile.
constexpr int kMinTileRows = 16;

// A layer that every choice of tokens has begun at.
constexpr int kAnyLayer = std::numeric_limits<int>::max();

int64_t PowerOfTwo(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

bool CoversChunks(const AttentionPlan& plan, int64_t i) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [i](const AttentionStage& stage) {
    return stage.keys == Keys::kChunks && stage.CoversRow(i);
  });
}

template <typename T>
size_t PaddedBytes(const std::vector<T>& values) {
  return (values.size() * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
}

// Lays values out one after the other on the host; says where they will lie on the device.
class Packer {
 public:
  Packer(std::byte* host, std::byte* device) : host_(host), device_(device) {}
  template <typename T>
  T* Add(const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(host_ + at_, values.data(), values.size() * sizeof(T));
    T* to = reinterpret_cast<T*>(device_ + at_);
    at_ += PaddedBytes(values);
    return to;
  }

 private:
  std::byte* const host_;
  std::byte* const device_;
  size_t at_ = 0;
};

}  // namespace

StepImage::StepImage(CudaMemory* memory, const AttentionSetup& setup, const Geometry& geometry)
    : memory_(memory),
      setup_(setup),
      geometry_(geometry),
      tensor_cores_(HasTensorShape(geometry) &&
                    TileSharedBytes(geometry) <= memory->info().max_shared_bytes),
      ropes_(memory, setup),
      stagings_{Staging(memory), Staging(memory)},
      device_(memory) {
  device_.Get<std::byte>(kUsualBytes);
  for (Staging& staging : stagings_) staging.Get(kUsualBytes);
}

bool StepImage::Repeats(const StepBatch& batch) {
  if (batch.slices.empty() || batch.num_rows > kBuckets[std::size(kBuckets) - 1]) return false;
  return std::all_of(batch.slices.begin(), batch.slices.end(), [](const SequenceSlice& slice) {
    // Which rows have which adapter is no part of what a recorded step is known by.
    if (slice.plan->adapter >= 0) return false;
    if (slice.num_rows != 1 || slice.plan->IsPromptRow(slice.first_position)) return false;
    const int chunk = slice.plan->selection.chunk_tokens;
    return chunk == 0 || (slice.first_position + 1) % chunk != 0;  // it completes no chunk
  });
}

int StepImage::BucketOf(int num_rows, int max_rows) {
  const int* bucket = std::lower_bound(std::begin(kBuckets), std::end(kBuckets), num_rows);
  return bucket == std::end(kBuckets) ? num_rows : std::min(*bucket, std::max(num_rows, max_rows));
}

absl::Status StepImage::Build(const StepBatch& batch, bool repeats,
                              const std::vector<EvidencePick*>& evidence) {
  ropes_.BeginStep();
  slices_.clear();
  offsets_.clear();
  frames_.clear();
  plain_rows_.clear();
  tensor_rows_.clear();
  choosing_rows_.clear();
  reading_rows_.clear();
  tiles_.clear();
  tasks_.clear();
  tokens_ = batch.tokens;
  slice_of_row_.assign(batch.num_rows, -1);
  choosing_place_.assign(batch.num_rows, -1);
  entropy_of_row_.assign(batch.num_rows, 1.0f);
  shape_ = {};
  shape_.num_rows = batch.num_rows;
  for (size_t n = 0; n < batch.slices.size(); ++n) {
    FOLIO_RETURN_IF_ERROR(AddSlice(batch.slices[n], evidence[n]));
  }
  samples_.Set(batch.logits);
  if (repeats) Pad();
  shape_.num_logits = static_cast<int>(samples_.tasks().size());
  shape_.num_plain_rows = static_cast<int>(plain_rows_.size());
  shape_.num_tensor_rows = static_cast<int>(tensor_rows_.size());
  shape_.num_tiles = static_cast<int>(tiles_.size());
  shape_.num_choosing_rows = static_cast<int>(choosing_rows_.size());
  shape_.num_reading_rows = static_cast<int>(reading_rows_.size());
  shape_.num_chunk_tasks = static_cast<int>(tasks_.size());
  return Upload();
}

void StepImage::Pad() {
  for (std::vector<int>* rows : {&plain_rows_, &tensor_rows_, &reading_rows_}) {
    if (!rows->empty()) rows->resize(shape_.num_rows, -1);
  }
  slices_.resize(shape_.num_rows);
  offsets_.resize(shape_.num_rows, {0, 0, 0, kNoFrames});
  for (int64_t* size : {&shape_.chunk_candidates, &shape_.token_candidates, &shape_.visits}) {
    *size = *size == 0 ? 0 : PowerOfTwo(*size);
  }
}

absl::Status StepImage::AddSlice(const SequenceSlice& from, EvidencePick* evidence) {
  const AttentionPlan& plan = *from.plan;
  const int index = static_cast<int>(slices_.size());
  Slice& to = slices_.emplace_back();
  to = {};
  to.row_begin = from.row_begin;
  to.num_rows = from.num_rows;
  to.first_position = from.first_position;
  to.prompt_tokens = plan.prompt_tokens;
  to.first_page = from.first_page;
  to.num_sinks = plan.retention.num_sinks;
  to.sinks_rotated = std::any_of(plan.stages.begin(), plan.stages.end(),
                                 [](const auto& stage) { return SinksAreRotated(stage); });
  to.raw_keys = plan.key_form == KeyForm::kRaw;
  to.entropy_first_layer =
      plan.entropy.base_length > 1 ? plan.entropy.first_layer : std::numeric_limits<int>::max();
  to.evidence = evidence;
  FOLIO_ASSIGN_OR_RETURN(const SliceRopes::Ropes ropes, ropes_.Get(from));
  SetRopes(ropes, &to);
  FOLIO_RETURN_IF_ERROR(SetStages(plan, *ropes.queries, &to));
  to.list_begin = shape_.num_lists;
  Measure(from, &shape_);
  to.selection = plan.selection;
  to.top_tokens = plan.top_tokens;
  AddChunkTasks(from);
  const auto add = [&](std::span<const FrameId> list) {
    const size_t at = frames_.size();
    frames_.insert(frames_.end(), list.begin(), list.end());
    return at;
  };
  const size_t pages = add(from.pages);
  if (setup_.page_places != nullptr) {
    for (size_t n = pages; n < frames_.size(); ++n) frames_[n] = setup_.page_places[frames_[n]];
  }
  const size_t sinks = add(from.sinks);
  const size_t summaries = add(from.summaries);
  const size_t pending = from.pending_queries.empty() ? kNoFrames : add(from.pending_queries);
  offsets_.push_back({pages, sinks, summaries, pending});
  for (int row = 0; row < from.num_rows; ++row) {
    slice_of_row_[from.row_begin + row] = index;
    if (plan.entropy.base_length <= 1) continue;
    entropy_of_row_[from.row_begin + row] =
        EntropyFactor(plan, from.first_position + row, std::numeric_limits<int>::max());
  }
  AddRows(from, &to);
  return absl::OkStatus();
}

bool StepImage::GoesIntoTiles(const SequenceSlice& from) const {
  return tensor_cores_ && from.num_rows >= kMinTileRows &&
         from.plan->IsPromptRow(from.first_position);
}

// Rows of the slice go into tiles as long as they see the same pages, and else by themselves.
void StepImage::AddRows(const SequenceSlice& from, Slice* to) {
  const AttentionPlan& plan = *from.plan;
  int in_tiles = 0;
  if (GoesIntoTiles(from)) {
    in_tiles = from.num_rows;
    while (in_tiles > 0 && ChoosesTokens(plan, from.first_position + in_tiles - 1, kAnyLayer)) {
      --in_tiles;
    }
    AddTiles(from, in_tiles);
  }
  for (int row = in_tiles; row < from.num_rows; ++row) {
    // A tile turns raw keys once for all of its rows; for one row that is not worth while.
    const bool tensor = tensor_cores_ && !to->raw_keys;
    (tensor ? tensor_rows_ : plain_rows_).push_back(from.row_begin + row);
    AddReader(from.row_begin + row);
  }
}

void StepImage::AddReader(int row) {
  if (setup_.page_places != nullptr) reading_rows_.push_back(row);
}

void StepImage::AddTiles(const SequenceSlice& from, int end) {
  const AttentionPlan& plan = *from.plan;
  const int most = RowsPerTile(geometry_);
  const int chunk = plan.selection.chunk_tokens;
  const int slice = static_cast<int>(slices_.size()) - 1;
  for (int row = 0; row < end;) {
    const int64_t i = from.first_position + row;
    int count = std::min(most, end - row);
    // What is forced depends on the own chunk.
    if (chunk > 0) count = static_cast<int>(std::min<int64_t>(count, chunk - i % chunk));
    tiles_.push_back({slice, from.row_begin + row, count});
    row += count;
    // What the others see of the context, but for pages that they are about to leave behind.
    AddReader(from.row_begin + row - 1);
  }
  if (chunk == 0) return;
  for (int row = 0; row < end; ++row) {
    if (!CoversChunks(plan, from.first_position + row)) continue;
    choosing_place_[from.row_begin + row] = static_cast<int>(choosing_rows_.size());
    choosing_rows_.push_back(from.row_begin + row);
    AddReader(from.row_begin + row);
  }
}

int64_t StepImage::MaxBytes(const Sizes& sizes) const {
  constexpr int64_t kLists = 16;
  // Padding makes rows and slices of a bucket.
  const int64_t padded = std::min<int64_t>(kBuckets[std::size(kBuckets) - 1], setup_.max_step_rows);
  const int64_t rows = std::max(sizes.num_rows, padded);
  const int64_t slices = std::max(sizes.num_slices, padded);
  constexpr int64_t kRowBytes = 3 * sizeof(int) + sizeof(float) + sizeof(Tile) + 5 * sizeof(int);
  // Tokens seen, and tokens allowed.
  const int64_t token_words = 2 * ((setup_.vocab_size + 31) / 32);
  return kLists * static_cast<int64_t>(kAlignment) + rows * kRowBytes +
         slices * static_cast<int64_t>(sizeof(Slice)) +
         sizes.num_chunk_tasks * static_cast<int64_t>(sizeof(ChunkTask)) +
         setup_.max_logit_rows * static_cast<int64_t>(sizeof(SampleTask)) +
         sizes.num_logit_changes * static_cast<int64_t>(sizeof(LogitEdit)) +
         (sizes.num_frames + sizes.num_slices * token_words) * static_cast<int64_t>(sizeof(int));
}

absl::Status StepImage::Reserve(const SequenceSlice& slice, const Sizes& sizes) {
  FOLIO_RETURN_IF_ERROR(ropes_.Get(slice).status());
  // By powers of two: graphs know where it lies.
  const int64_t bytes = PowerOfTwo(std::max(kUsualBytes, MaxBytes(sizes)));
  FOLIO_RETURN_IF_ERROR(device_.Reserve<std::byte>(bytes));
  // The copy from the other one may be under way.
  return stagings_[1 - turn_].Reserve(bytes);
}

void StepImage::SetRopes(const SliceRopes::Ropes& ropes, Slice* to) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(setup_.geometry.head_dim));
  to->rope = ropes.queries->table();
  to->summary_rope = ropes.summaries->table();
  to->scale = scale * ropes.queries->logit_factor();
  to->summary_scale = scale * ropes.summaries->logit_factor();
}

absl::Status StepImage::SetStages(const AttentionPlan& plan, const DeviceRope& rope, Slice* to) {
  if (plan.stages.size() > kMaxStages) {
    return absl::InternalError(absl::StrCat("a plan has ", plan.stages.size(),
                                            " stages, kernels take at most ", kMaxStages));
  }
  for (const AttentionStage& stage : plan.stages) {
    const bool pinned = stage.distance == Distance::kPinned;
    to->stages[to->num_stages++] = {stage, pinned ? rope.fixed(stage.distance_limit) : nullptr};
  }
  return absl::OkStatus();
}

void StepImage::Measure(const SequenceSlice& slice, StepShape* shape) const {
  const AttentionPlan& plan = *slice.plan;
  const int64_t end = slice.first_position + slice.num_rows;
  const int64_t last = end - 1;
  const int page_tokens = setup_.geometry.page_tokens;
  int64_t visits = 0;
  for (const AttentionStage& stage : plan.stages) {
    if (stage.keys == Keys::kContext && stage.CoversRow(last)) {
      visits += std::min(last, stage.band_end) / page_tokens + 1;
    } else if (stage.keys == Keys::kChunks) {
      visits += int64_t{ChunksPerHead(plan.selection)} * plan.selection.chunk_tokens / page_tokens;
    } else if (stage.keys == Keys::kTopTokens) {
      const int64_t candidates =
          std::max<int64_t>(1, KeysOf(stage, plan.retention.num_sinks, last).size());
      shape->token_candidates = std::max(shape->token_candidates, candidates);
      shape->token_picks = std::max(shape->token_picks, plan.top_tokens.count);
    }
  }
  shape->visits = std::max(shape->visits, visits);
  const ChunkSelection& select = plan.selection;
  if (!select.enabled()) return;
  shape->max_chunk_tokens = std::max(shape->max_chunk_tokens, select.chunk_tokens);
  shape->num_chunk_tasks +=
      static_cast<int>(end / select.chunk_tokens - slice.first_position / select.chunk_tokens);
  shape->chunk_picks = std::max(shape->chunk_picks, select.num_free_picks);
  shape->chunk_candidates =
      std::max<int64_t>({1, shape->chunk_candidates, end / select.chunk_tokens});
  if (!GoesIntoTiles(slice)) return;
  shape->num_lists += static_cast<int>(end / select.chunk_tokens + 1);
  shape->num_choosing_rows += slice.num_rows;
}

void StepImage::AddChunkTasks(const SequenceSlice& from) {
  const ChunkSelection& select = from.plan->selection;
  if (!select.enabled()) return;
  const int index = static_cast<int>(slices_.size()) - 1;
  const int64_t end = from.first_position + from.num_rows;
  for (int64_t c = from.first_position / select.chunk_tokens; (c + 1) * select.chunk_tokens <= end;
       ++c) {
    tasks_.push_back({index, c});
  }
}

// Whatever has an address that kernels are told comes first, and takes as much as in any other step
// of this shape: a repeated step finds it where it was.
absl::Status StepImage::Upload() {
  const size_t fixed = PaddedBytes(slice_of_row_) + PaddedBytes(entropy_of_row_) +
                       PaddedBytes(tokens_) + PaddedBytes(samples_.tasks()) + PaddedBytes(slices_) +
                       PaddedBytes(plain_rows_) + PaddedBytes(tensor_rows_) + PaddedBytes(tiles_) +
                       PaddedBytes(choosing_rows_) + PaddedBytes(choosing_place_) +
                       PaddedBytes(reading_rows_) + PaddedBytes(tasks_);
  const size_t bytes =
      fixed + PaddedBytes(frames_) + PaddedBytes(samples_.words()) + PaddedBytes(samples_.edits());
  auto* device = device_.Get<std::byte>(static_cast<int64_t>(bytes));
  turn_ = 1 - turn_;
  std::byte* host = stagings_[turn_].Get(static_cast<int64_t>(bytes));
  if (device == nullptr || host == nullptr) return memory_->status();
  // Slices and samples hold addresses themselves: of the lists that come last.
  Packer lists(host + fixed, device + fixed);
  const int* frames = lists.Add(frames_);
  const uint32_t* words = lists.Add(samples_.words());
  samples_.SetBase(words, lists.Add(samples_.edits()));
  for (size_t n = 0; n < slices_.size(); ++n) {
    slices_[n].pages = frames + offsets_[n].pages;
    slices_[n].sinks = frames + offsets_[n].sinks;
    slices_[n].summaries = frames + offsets_[n].summaries;
    slices_[n].pending = offsets_[n].pending == kNoFrames ? nullptr : frames + offsets_[n].pending;
  }
  Packer packer(host, device);
  step_.num_rows = shape_.num_rows;
  step_.slice_of_row = packer.Add(slice_of_row_);
  step_.entropy_of_row = packer.Add(entropy_of_row_);
  step_.tokens = packer.Add(tokens_);
  step_.samples = packer.Add(samples_.tasks());
  step_.slices = packer.Add(slices_);
  step_.plain_rows = {packer.Add(plain_rows_), shape_.num_plain_rows};
  step_.tensor_rows = {packer.Add(tensor_rows_), shape_.num_tensor_rows};
  step_.tiles = packer.Add(tiles_);
  step_.num_tiles = shape_.num_tiles;
  step_.choosing_rows = {packer.Add(choosing_rows_), shape_.num_choosing_rows};
  step_.choosing_place = packer.Add(choosing_place_);
  step_.reading_rows = {packer.Add(reading_rows_), shape_.num_reading_rows};
  step_.num_lists = shape_.num_lists;
  chunk_tasks_ = packer.Add(tasks_);
  memory_->WriteAsync(device, host, static_cast<int64_t>(bytes));
  return memory_->status();
}

}  // namespace folio::cuda
