#include "engine/backend/cuda/step_image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/attention/rope.h"
#include "engine/attention/visible_keys.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

constexpr size_t kAlignment = 16;

bool SinksAreRotated(const AttentionPlan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const AttentionStage& stage) {
    return stage.keys == Keys::kSinks && stage.distance == Distance::kClamped;
  });
}

// Appends values to bytes, aligned; returns their offset.
template <typename T>
size_t Append(const std::vector<T>& values, std::vector<std::byte>* bytes) {
  const size_t at = (bytes->size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes->resize(at + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes->data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

}  // namespace

absl::Status StepImage::Build(const StepBatch& batch) {
  ropes_.BeginStep();
  slices_.clear();
  frames_.clear();
  offsets_.clear();
  tasks_.clear();
  slice_of_row_.assign(batch.num_rows, 0);
  entropy_of_row_.assign(batch.num_rows, 1.0f);
  max_chunk_tokens_ = max_chunk_picks_ = max_token_picks_ = 0;
  max_chunk_candidates_ = max_token_candidates_ = max_visits_ = 0;
  for (const SequenceSlice& slice : batch.slices) FOLIO_RETURN_IF_ERROR(AddSlice(slice));
  step_.num_rows = batch.num_rows;
  step_.num_slices = static_cast<int>(slices_.size());
  return Upload();
}

absl::Status StepImage::AddSlice(const SequenceSlice& from) {
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
  to.sinks_rotated = SinksAreRotated(plan);
  to.raw_keys = plan.key_form == KeyForm::kRaw;
  to.entropy_first_layer =
      plan.entropy.base_length > 1 ? plan.entropy.first_layer : std::numeric_limits<int>::max();
  FOLIO_RETURN_IF_ERROR(SetRopes(from, &to));
  SetSelection(plan, &to);
  if (plan.selection.enabled()) to.pending = from.pending_queries->data->data();
  AddTasks(from);
  offsets_.push_back({});
  const auto add = [&](std::span<const FrameId> list) {
    const size_t at = frames_.size();
    frames_.insert(frames_.end(), list.begin(), list.end());
    return at;
  };
  offsets_.back() = {add(from.pages), add(from.sinks), add(from.summaries)};
  for (int row = 0; row < from.num_rows; ++row) {
    slice_of_row_[from.row_begin + row] = index;
    if (plan.entropy.base_length <= 1) continue;
    entropy_of_row_[from.row_begin + row] =
        EntropyFactor(plan, from.first_position + row, std::numeric_limits<int>::max());
  }
  return absl::OkStatus();
}

const Rotary& StepImage::RotaryOf(const SequenceSlice& from) {
  const AttentionPlan& plan = *from.plan;
  const bool prompt = plan.IsPromptRow(from.first_position);
  if (plan.dynamic_base) {
    const int64_t length = prompt && plan.prompt_tokens != kUnbounded
                               ? plan.prompt_tokens
                               : from.first_position + from.num_rows;
    dynamic_ = DynamicRotary(*plan.dynamic_base, setup_.geometry.head_dim, length);
    return dynamic_;
  }
  if (!prompt && plan.decode_rotary != nullptr) return *plan.decode_rotary;
  return plan.rotary != nullptr ? *plan.rotary : setup_.rotary;
}

// Tables with every rotation that a row of the slice may need.
absl::Status StepImage::SetRopes(const SequenceSlice& from, Slice* to) {
  const KvGeometry& g = setup_.geometry;
  const AttentionPlan& plan = *from.plan;
  const int64_t last = from.first_position + from.num_rows - 1;
  DeviceRope* rope = ropes_.Get(RotaryOf(from));
  DeviceRope* summary = plan.decode_rotary != nullptr ? ropes_.Get(*plan.decode_rotary) : rope;
  int64_t reach = last + g.page_tokens;
  if (plan.selection.enabled()) {
    reach =
        std::max(reach, int64_t{plan.selection.num_free_picks + 3} * plan.selection.chunk_tokens);
  }
  const int64_t num_positions = std::max(g.page_tokens, plan.selection.chunk_tokens);
  for (DeviceRope* table : {rope, summary}) {
    FOLIO_RETURN_IF_ERROR(table->Grow(num_positions, reach / g.page_tokens + 1));
    for (const AttentionStage& stage : plan.stages) {
      if (stage.distance == Distance::kPinned) {
        FOLIO_RETURN_IF_ERROR(table->AddFixed(stage.distance_limit));
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim));
  to->rope = rope->table();
  to->summary_rope = summary->table();
  to->scale = scale * rope->logit_factor();
  to->summary_scale = scale * summary->logit_factor();
  SetStages(from, *rope, to);
  return absl::OkStatus();
}

void StepImage::SetStages(const SequenceSlice& from, const DeviceRope& rope, Slice* to) {
  const AttentionPlan& plan = *from.plan;
  const int64_t last = from.first_position + from.num_rows - 1;
  const int page_tokens = setup_.geometry.page_tokens;
  int64_t visits = 0;
  for (const AttentionStage& stage : plan.stages) {
    Stage& out = to->stages[to->num_stages++];
    out.keys = static_cast<int>(stage.keys);
    out.distance = static_cast<int>(stage.distance);
    out.rows_begin = stage.rows_begin;
    out.rows_end = stage.rows_end;
    out.band_begin = stage.band_begin;
    out.band_end = stage.band_end;
    out.distance_limit = stage.distance_limit;
    out.fixed = stage.distance == Distance::kPinned ? rope.fixed(stage.distance_limit) : nullptr;
    if (stage.keys == Keys::kContext && stage.CoversRow(last)) {
      visits += std::min(last, stage.band_end) / page_tokens + 1;
    } else if (stage.keys == Keys::kChunks) {
      visits +=
          int64_t{plan.selection.num_free_picks + 3} * plan.selection.chunk_tokens / page_tokens;
    } else if (stage.keys == Keys::kTopTokens) {
      const int64_t candidates = last - stage.band_begin + 1 - plan.retention.num_sinks;
      max_token_candidates_ = std::max(max_token_candidates_, candidates);
      max_token_picks_ = std::max(max_token_picks_, plan.top_tokens.count);
    }
  }
  max_visits_ = std::max(max_visits_, visits);
}

void StepImage::SetSelection(const AttentionPlan& plan, Slice* to) {
  const ChunkSelection& select = plan.selection;
  Selection& out = to->selection;
  out.chunk_tokens = select.chunk_tokens;
  out.num_free_picks = select.num_free_picks;
  out.scorer = static_cast<int>(select.scorer);
  out.share = static_cast<int>(select.share);
  out.order = static_cast<int>(select.order);
  out.first_chunk = select.first_chunk;
  out.prompt_skips_self = select.prompt_skips_self;
  out.decode_boundary = select.decode_boundary;
  out.frames_per_tile = FramesPerSummaryTile(select);
  out.top_count = plan.top_tokens.count;
  out.top_first_layer = plan.top_tokens.first_layer;
  out.top_all_rows = plan.top_tokens.all_rows;
  out.top_all_or_none = plan.top_tokens.all_or_none;
}

void StepImage::AddTasks(const SequenceSlice& from) {
  const ChunkSelection& select = from.plan->selection;
  if (!select.enabled()) return;
  const int index = static_cast<int>(slices_.size()) - 1;
  const int64_t end = from.first_position + from.num_rows;
  for (int64_t c = from.first_position / select.chunk_tokens; (c + 1) * select.chunk_tokens <= end;
       ++c) {
    tasks_.push_back({index, c});
  }
  max_chunk_tokens_ = std::max(max_chunk_tokens_, select.chunk_tokens);
  max_chunk_picks_ = std::max(max_chunk_picks_, select.num_free_picks);
  max_chunk_candidates_ = std::max(max_chunk_candidates_, end / select.chunk_tokens);
}

// All addresses are known only when everything is in place: frames and slices go last.
absl::Status StepImage::Upload() {
  host_.clear();
  const size_t rows = Append(slice_of_row_, &host_);
  const size_t entropy = Append(entropy_of_row_, &host_);
  const size_t frames = Append(frames_, &host_);
  const size_t tasks = Append(tasks_, &host_);
  const size_t slices = Append(slices_, &host_);
  const auto floats = static_cast<int64_t>(host_.size() / sizeof(float) + 1);
  if (device_.size() < floats) {
    FOLIO_ASSIGN_OR_RETURN(device_, Buffer::Create(memory_, 2 * floats));
  }
  auto* base = reinterpret_cast<std::byte*>(device_.data());
  const auto* device_frames = reinterpret_cast<const int*>(base + frames);
  for (size_t n = 0; n < slices_.size(); ++n) {
    slices_[n].pages = device_frames + offsets_[n].pages;
    slices_[n].sinks = device_frames + offsets_[n].sinks;
    slices_[n].summaries = device_frames + offsets_[n].summaries;
  }
  if (!slices_.empty()) {
    std::memcpy(host_.data() + slices, slices_.data(), slices_.size() * sizeof(Slice));
  }
  memory_->Write(base, host_.data(), static_cast<int64_t>(host_.size()));
  step_.slices = reinterpret_cast<const Slice*>(base + slices);
  step_.slice_of_row = reinterpret_cast<const int*>(base + rows);
  step_.entropy_of_row = reinterpret_cast<const float*>(base + entropy);
  device_tasks_ = reinterpret_cast<const ChunkTask*>(base + tasks);
  return absl::OkStatus();
}

}  // namespace folio::cuda
