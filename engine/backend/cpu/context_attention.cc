// Stages that see all tokens of a range: page after page, in segments.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/cpu_attention.h"

namespace folio {

using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

namespace {

// Long enough for a thread's work, short enough for many threads.
constexpr int64_t kSegmentTokens = 4096;

int64_t PagesPerSegment(const KvGeometry& geometry) {
  return std::max<int64_t>(1, kSegmentTokens / geometry.page_tokens);
}

// Of the stage, but for what lies behind the layer's own window.
KeyRange SeenKeys(const CpuAttentionContext& context, const AttentionStage& stage, int layer,
                  int64_t i) {
  KeyRange keys = KeysOf(stage, context.plan().retention.num_sinks, i);
  const int64_t window = context.setup->views.WindowOf(layer);
  if (window <= i) keys.begin = std::max(keys.begin, i - window + 1);
  return keys;
}

// Adds what the running softmax `from` has seen, of other tokens, to `to`.
void FoldState(const float* from, int dim, float* to) {
  const float from_max = from[dim];
  if (from_max == -std::numeric_limits<float>::infinity()) return;
  const float max = std::max(to[dim], from_max);
  const float kept = std::exp(to[dim] - max);
  const float added = std::exp(from_max - max);
  for (int d = 0; d < dim; ++d) to[d] = to[d] * kept + from[d] * added;
  to[dim] = max;
  to[dim + 1] = to[dim + 1] * kept + from[dim + 1] * added;
}

}  // namespace

AttentionWorker::Segments AttentionWorker::SegmentsOf(const Block& block) {
  const CpuAttentionContext& context = *block.context;
  const std::span<const AttentionStage> stages = context.plan().stages;
  if (stages.size() != 1 || stages[0].keys != Keys::kContext) return {};
  const int64_t first = context.slice->first_position + block.first_row;
  const int64_t last = first + block.num_rows - 1;
  if (first < std::max(stages[0].rows_begin, stages[0].band_begin) || last >= stages[0].rows_end) {
    return {};
  }
  const int64_t oldest = SeenKeys(context, stages[0], block.layer, first).begin;
  const int64_t tokens = PagesPerSegment(context.geometry()) * context.geometry().page_tokens;
  return {oldest / tokens, (last - stages[0].band_begin) / tokens + 1};
}

int64_t AttentionWorker::SegmentFloats(const Block& block) {
  return int64_t{block.num_rows} * block.num_heads * (block.context->geometry().padded_dim + 2);
}

void AttentionWorker::RunSegments(const Block& block, Segments segments, const float* qkv,
                                  float* states) {
  Begin(block, qkv);
  segment_states_ = states;
  first_segment_ = segments.begin;
  BeginPass(0);
  const int64_t pages = PagesPerSegment(context_->geometry());
  const auto first = std::lower_bound(pages_.begin(), pages_.end(), segments.begin * pages);
  next_page_ = first - pages_.begin();
  VisitBefore(segments.end * pages);
  EndPass();
}

void AttentionWorker::FinishSegments(const Block& block, int64_t num_segments, const float* states,
                                     float* out) {
  BeginBlock(block);
  for (int64_t n = 0; n < num_segments; ++n) FoldStates(states + n * SegmentFloats(block));
  Finish(out);
}

void AttentionWorker::FoldStates(const float* segment) {
  for (int query = 0; query < num_queries(); ++query) {
    const int64_t at = query * state_floats();
    FoldState(segment + at, dim_, &states_[at]);
  }
}

void AttentionWorker::EndSegment() {
  if (segment_ == kNoSegment) return;
  if (segment_states_ == nullptr) {
    FoldStates(segment_state_.data());
  } else {
    std::copy(segment_state_.begin(), segment_state_.end(),
              segment_states_ + (segment_ - first_segment_) * SegmentFloats(block_));
  }
  segment_ = kNoSegment;
}

void AttentionWorker::BeginContext() {
  if (rows_.size() == 0) return;
  const int64_t last = Position(rows_.end - 1);
  if (last < stage().band_begin) return;
  RotateQueries(rows_, stage(), &turned_);
  const int64_t oldest = SeenKeys(*context_, stage(), block_.layer, Position(rows_.begin)).begin;
  const int64_t last_page = (last - stage().band_begin) / page_tokens_;
  for (int64_t page = std::max(slice().first_page, oldest / page_tokens_); page <= last_page;
       ++page) {
    pages_.push_back(page);
  }
}

void AttentionWorker::VisitContext(int64_t page, int64_t next) {
  const int64_t start = page * page_tokens_;
  const bool pinned = stage().distance == Distance::kPinned;
  if (const int64_t at = page / PagesPerSegment(context_->geometry()); at != segment_) {
    EndSegment();
    segment_ = at;
    InitStates(&segment_state_);
  }
  visits_.clear();
  for (int row = rows_.begin; row < rows_.end; ++row) {
    const int64_t i = Position(row);
    const KeyRange keys = SeenKeys(*context_, stage(), block_.layer, i);
    const int64_t lo = std::max<int64_t>(0, keys.begin - start);
    const int64_t hi = std::min<int64_t>(page_tokens_, keys.end - start);
    if (lo >= hi) continue;
    const int64_t turn = pinned ? 0 : slack() ? page : i / page_tokens_ - page;
    for (int head = 0; head < group_; ++head) {
      visits_.push_back({query(row, head), turn, static_cast<int>(lo), static_cast<int>(hi),
                         pinned ? stage().distance_limit : i - start, pinned});
    }
  }
  if (visits_.empty()) return;
  VisitPages(page, next, !pinned);
}

}  // namespace folio
