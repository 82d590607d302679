#include "engine/backend/cpu/cpu_attention.h"

#include <algorithm>

namespace folio {

using cpu::kQueryRows;

namespace {

constexpr int kBlockQueries = 256;

}  // namespace

int AttentionWorker::BlockTokens(const KvGeometry& geometry) {
  return std::max(1, kBlockQueries / (geometry.num_heads / geometry.num_kv_heads));
}

void AttentionWorker::Run(const CpuAttentionContext& context, const Block& block, const float* qkv,
                          float* out) {
  context_ = &context;
  block_ = block;
  const KvGeometry& g = context.geometry();
  group_ = g.num_heads / g.num_kv_heads;
  dim_ = g.padded_dim;
  page_tokens_ = g.page_tokens;
  LoadQueries(qkv);
  for (const AttentionStage& stage : block.slice->plan->stages) {
    switch (stage.keys) {
      case AttentionStage::Keys::kContext:
        RunContext(stage);
        break;
      case AttentionStage::Keys::kSinks:
        RunSinks(stage);
        break;
      case AttentionStage::Keys::kChunks:
        RunChunks(stage);
        break;
    }
  }
  WriteOutput(out);
}

void AttentionWorker::LoadQueries(const float* qkv) {
  const KvGeometry& g = context_->geometry();
  const int64_t width = int64_t{g.num_heads + 2 * g.num_kv_heads} * g.head_dim;
  const int num_queries = block_.num_rows * group_;
  const int half = g.head_dim / 2;
  raw_.assign(static_cast<size_t>(num_queries) * dim_, 0.0f);
  local_.assign(static_cast<size_t>(num_queries) * dim_, 0.0f);
  pinned_.assign(block_.pinned_cos != nullptr ? local_.size() : 0, 0.0f);
  states_.resize(static_cast<size_t>(num_queries) * (dim_ + 2));
  rotated_.assign(static_cast<size_t>(kQueryRows) * dim_, 0.0f);
  own_.resize(block_.num_rows);
  float scaled[kMaxHeadDim];
  for (int row = 0; row < block_.num_rows; ++row) {
    const int64_t step_row = block_.slice->row_begin + block_.first_row + row;
    const int token = static_cast<int>(Position(row) % page_tokens_);
    for (int head = 0; head < group_; ++head) {
      const float* q =
          qkv + step_row * width + int64_t{block_.kv_head * group_ + head} * g.head_dim;
      std::copy(q, q + g.head_dim, &raw_[(int64_t{head} * block_.num_rows + row) * dim_]);
      for (int d = 0; d < g.head_dim; ++d) scaled[d] = q[d] * context_->scale;
      const int64_t at = query(row, head);
      context_->kernels->rotate(scaled, context_->positions->Cos(token),
                                context_->positions->Sin(token), 1.0f, half, &local_[at * dim_]);
      if (block_.pinned_cos != nullptr) {
        context_->kernels->rotate(scaled, block_.pinned_cos, block_.pinned_sin, 1.0f, half,
                                  &pinned_[at * dim_]);
      }
      cpu::InitState(&states_[at * (dim_ + 2)], dim_);
    }
  }
}

void AttentionWorker::VisitPage(FrameId frame, FrameId next, const std::vector<float>& queries) {
  const KvGeometry& g = context_->geometry();
  cpu::AttendPageArgs args;
  args.k = context_->Keys(frame, block_.layer, block_.kv_head);
  args.v = context_->Values(frame, block_.layer, block_.kv_head);
  args.next_k = context_->Keys(next, block_.layer, block_.kv_head);
  args.next_v = context_->Values(next, block_.layer, block_.kv_head);
  args.dim = dim_;
  args.q = rotated_.data();
  for (size_t first = 0; first < visits_.size(); first += kQueryRows) {
    args.num_rows = static_cast<int>(std::min<size_t>(kQueryRows, visits_.size() - first));
    for (int r = 0; r < args.num_rows; ++r) {
      const Visit& visit = visits_[first + r];
      const float* q = &queries[int64_t{visit.query} * dim_];
      float* to = &rotated_[r * dim_];
      if (visit.page_distance == 0) {
        std::copy(q, q + dim_, to);
      } else {
        context_->kernels->rotate(q, context_->pages->Cos(visit.page_distance),
                                  context_->pages->Sin(visit.page_distance), 1.0f, g.head_dim / 2,
                                  to);
      }
      args.lo[r] = visit.lo;
      args.hi[r] = visit.hi;
      args.state[r] = &states_[int64_t{visit.query} * (dim_ + 2)];
    }
    context_->kernels->attend_page(g.dtype, page_tokens_, args);
    args.next_k = args.k;
    args.next_v = args.v;
  }
}

AttentionWorker::RowRange AttentionWorker::CoveredRows(const AttentionStage& stage) const {
  const int64_t first = Position(0);
  const int64_t rows = block_.num_rows;
  const int64_t begin = std::clamp<int64_t>(stage.rows_begin - first, 0, rows);
  const int64_t end = stage.rows_end == kUnbounded ? rows : stage.rows_end - first;
  return {static_cast<int>(begin), static_cast<int>(std::clamp<int64_t>(end, begin, rows))};
}

void AttentionWorker::RunContext(const AttentionStage& stage) {
  const SequenceSlice& slice = *block_.slice;
  const RowRange rows = CoveredRows(stage);
  if (rows.begin == rows.end) return;
  const int64_t last = Position(rows.end - 1);
  const int64_t oldest = stage.band_end > last ? 0 : Position(rows.begin) - stage.band_end + 1;
  const int64_t first_page =
      std::max(slice.first_page, std::max<int64_t>(0, oldest) / page_tokens_);
  const int64_t last_page = last / page_tokens_;
  for (int64_t page = first_page; page <= last_page; ++page) {
    const int64_t start = page * page_tokens_;
    visits_.clear();
    for (int row = rows.begin; row < rows.end; ++row) {
      const int64_t i = Position(row);
      const int64_t begin = stage.band_end > i ? 0 : i - stage.band_end + 1;
      const int64_t lo = std::max<int64_t>(0, begin - start);
      const int64_t hi = std::min<int64_t>(page_tokens_, i - stage.band_begin + 1 - start);
      if (lo >= hi) continue;
      for (int head = 0; head < group_; ++head) {
        visits_.push_back({query(row, head), i / page_tokens_ - page, static_cast<int>(lo),
                           static_cast<int>(hi)});
      }
    }
    if (visits_.empty()) continue;
    VisitPage(slice.pages[page - slice.first_page],
              slice.pages[std::min(page + 1, last_page) - slice.first_page], local_);
  }
}

void AttentionWorker::RunSinks(const AttentionStage& stage) {
  const SequenceSlice& slice = *block_.slice;
  const RowRange rows = CoveredRows(stage);
  for (size_t page = 0; page < slice.sinks.size(); ++page) {
    const int64_t start = static_cast<int64_t>(page) * page_tokens_;
    visits_.clear();
    for (int row = rows.begin; row < rows.end; ++row) {
      const int64_t end =
          std::min<int64_t>(slice.plan->retention.num_sinks, Position(row) - stage.band_begin + 1);
      const int64_t hi = std::min<int64_t>(page_tokens_, end - start);
      if (hi <= 0) continue;
      for (int head = 0; head < group_; ++head) {
        visits_.push_back({query(row, head), 0, 0, static_cast<int>(hi)});
      }
    }
    if (!visits_.empty()) VisitPage(slice.sinks[page], slice.sinks[page], pinned_);
  }
}

void AttentionWorker::ChooseChunks(int row, int head, std::span<const int64_t> picks) {
  const int64_t own = own_[row];
  // In ascending order: the first, the picks, the previous, the own one.
  int slots_after = static_cast<int>(picks.size()) + static_cast<int>(std::min<int64_t>(own, 2));
  const auto add = [&](int64_t chunk) {
    chosen_.push_back({chunk, query(row, head), slots_after--});
  };
  if (own >= 1) add(0);
  for (int64_t chunk : picks) add(chunk);
  if (own >= 2) add(own - 1);
  add(own);
}

void AttentionWorker::CollectVisits(std::span<const ChosenChunk> chosen, int64_t page) {
  const int64_t w = block_.slice->plan->selection.chunk_tokens;
  visits_.clear();
  for (const ChosenChunk& c : chosen) {
    const int64_t offset = Position(c.query / group_) % w;
    // The chosen chunks stand side by side, the query's own one last.
    const int64_t distance = c.slots_after * (w / page_tokens_) + offset / page_tokens_ - page;
    const int64_t visible = (c.slots_after == 0 ? offset + 1 : w) - page * page_tokens_;
    if (visible <= 0) continue;
    visits_.push_back(
        {c.query, distance, 0, static_cast<int>(std::min<int64_t>(page_tokens_, visible))});
  }
}

void AttentionWorker::RunChunks(const AttentionStage& stage) {
  const SequenceSlice& slice = *block_.slice;
  const int64_t w = slice.plan->selection.chunk_tokens;
  const RowRange rows = CoveredRows(stage);
  const int first = rows.begin;
  const int num_rows = rows.end - rows.begin;
  if (num_rows == 0) return;
  for (int row = 0; row < block_.num_rows; ++row) own_[row] = Position(row) / w;
  chosen_.clear();
  for (int head = 0; head < group_; ++head) {
    const size_t begin = (int64_t{head} * block_.num_rows + first) * dim_;
    selector_.Run(*context_, slice, block_.layer, block_.kv_head * group_ + head,
                  std::span<const float>(raw_).subspan(begin, int64_t{num_rows} * dim_),
                  std::span<const int64_t>(own_).subspan(first));
    for (int row = 0; row < num_rows; ++row) ChooseChunks(first + row, head, selector_.Picks(row));
  }
  std::sort(chosen_.begin(), chosen_.end());
  // Nothing of a plan with chunks is ever dropped: page 0 is the first.
  const std::span<const FrameId> pages = slice.pages;
  const int64_t pages_per_chunk = w / page_tokens_;
  for (size_t begin = 0; begin < chosen_.size();) {
    size_t end = begin;
    while (end < chosen_.size() && chosen_[end].chunk == chosen_[begin].chunk) ++end;
    const std::span<const ChosenChunk> of_chunk(&chosen_[begin], end - begin);
    const int64_t first_page = of_chunk[0].chunk * pages_per_chunk;
    const int64_t page_after =
        end < chosen_.size() ? chosen_[end].chunk * pages_per_chunk : first_page;
    for (int64_t page = 0; page < pages_per_chunk; ++page) {
      CollectVisits(of_chunk, page);
      if (visits_.empty()) break;  // the rest of the query's own chunk
      const bool last = page + 1 == pages_per_chunk;
      VisitPage(
          pages[first_page + page],
          pages[last ? page_after : std::min<int64_t>(first_page + page + 1, pages.size() - 1)],
          local_);
    }
    begin = end;
  }
}

void AttentionWorker::WriteOutput(float* out) const {
  const KvGeometry& g = context_->geometry();
  for (int row = 0; row < block_.num_rows; ++row) {
    const int64_t step_row = block_.slice->row_begin + block_.first_row + row;
    for (int head = 0; head < group_; ++head) {
      const float* state = &states_[int64_t{query(row, head)} * (dim_ + 2)];
      float* to = out + (step_row * g.num_heads + block_.kv_head * group_ + head) * g.head_dim;
      const float norm = 1.0f / state[dim_ + 1];
      for (int d = 0; d < g.head_dim; ++d) to[d] = state[d] * norm;
    }
  }
}

}  // namespace folio
