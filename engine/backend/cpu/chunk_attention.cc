// The part of AttentionWorker that attends to chosen chunks (LongHeads).
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/backend/cpu/cpu_attention.h"

namespace folio {

void AttentionWorker::AddChosen(int row, int head, std::span<const int64_t> picks) {
  const int64_t position = Position(row);
  const ChunkView view = ViewChunks(plan().selection, position, plan().IsPromptRow(position));
  const auto w = static_cast<int>(plan().selection.chunk_tokens);
  const auto offset = static_cast<int>(position % w);
  // In ascending order: the first, the picks, the previous, the own one.
  int slots_after = static_cast<int>(picks.size()) + view.num_forced;
  const auto add = [&](int64_t chunk) {
    const int num_tokens = slots_after == 0 ? static_cast<int>(view.own_tokens) : w;
    chosen_.push_back({chunk, query(row, head), slots_after--, offset, num_tokens});
  };
  int forced = 0;
  if (view.forces_first()) add(view.forced[forced++]);
  for (int64_t chunk : picks) add(chunk);
  while (forced < view.num_forced) add(view.forced[forced++]);
  add(view.own);
}

void AttentionWorker::SortChosen() {
  int64_t last = 0;
  for (const ChosenChunk& c : chosen_) last = std::max(last, c.chunk);
  const auto num_chunks = static_cast<size_t>(last) + 1;
  // A prompt's rows choose many chunks of few, an answer's few of many.
  if (chosen_.size() < num_chunks / 8) {
    return std::sort(chosen_.begin(), chosen_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.chunk, a.query) < std::pair(b.chunk, b.query);
    });
  }
  places_.assign(num_chunks + 1, 0);
  for (const ChosenChunk& c : chosen_) ++places_[c.chunk + 1];
  std::partial_sum(places_.begin(), places_.end(), places_.begin());
  sorted_.resize(chosen_.size());
  for (const ChosenChunk& c : chosen_) sorted_[places_[c.chunk]++] = c;
  chosen_.swap(sorted_);
}

void AttentionWorker::RecordPicks(int head, std::span<const ChunkSelector::Pick> ranked) {
  const int64_t per_head = plan().selection.num_free_picks;
  ChunkPicks::Pick* to =
      &slice().picks->picks[(int64_t{block_.layer} * context_->geometry().num_heads +
                             head_of_model(head)) *
                            per_head];
  std::fill(to, to + per_head, ChunkPicks::Pick{});
  for (size_t i = 0; i < ranked.size(); ++i) to[i] = {ranked[i].chunk, ranked[i].score};
}

void AttentionWorker::KeepPicks(RowRange rows, int head) {
  SharedPicks& shared_picks = *context_->shared_picks;
  for (int row = 0; row < rows.size(); ++row) {
    const int64_t step_row = slice().row_begin + block_.first_row + rows.begin + row;
    const int64_t at = step_row * context_->geometry().num_heads + head_of_model(head);
    const std::span<const int64_t> picks = selector_.Picks(head, row);
    shared_picks.counts[at] = static_cast<int>(picks.size());
    std::copy(picks.begin(), picks.end(), &shared_picks.picks[at * shared_picks.picks_per_head]);
  }
}

void AttentionWorker::TakeOverPicks(RowRange rows) {
  const SharedPicks& shared_picks = *context_->shared_picks;
  for (int row = rows.begin; row < rows.end; ++row) {
    for (int head = 0; head < group_; ++head) {
      const int64_t step_row = slice().row_begin + block_.first_row + row;
      const int64_t at = step_row * context_->geometry().num_heads + head_of_model(head);
      AddChosen(row, head,
                {&shared_picks.picks[at * shared_picks.picks_per_head],
                 static_cast<size_t>(shared_picks.counts[at])});
    }
  }
}

void AttentionWorker::SelectChunks(RowRange rows, const float* qkv) {
  using Share = ChunkSelection::Share;
  const KvGeometry& g = context_->geometry();
  const Share share = plan().selection.share;
  if (share == Share::kLayers && block_.layer > 0) return TakeOverPicks(rows);
  const bool whole_layer = share == Share::kLayer;
  const int first_head = whole_layer ? 0 : head_of_model(0);
  const int num_heads = whole_layer ? g.num_heads : group_;
  const int64_t head_stride = int64_t{rows.size()} * dim_;
  raw_.assign(num_heads * head_stride, 0.0f);
  ends_.resize(rows.size());
  for (int row = 0; row < rows.size(); ++row) {
    const int64_t i = Position(rows.begin + row);
    ends_[row] = ViewChunks(plan().selection, i, plan().IsPromptRow(i)).candidates_end;
    for (int h = 0; h < num_heads; ++h) {
      const float* q = context_->Query(qkv, block_.first_row + rows.begin + row, first_head + h);
      std::copy(q, q + g.head_dim, &raw_[h * head_stride + int64_t{row} * dim_]);
    }
  }
  const bool last_rows = block_.first_row + rows.end == slice().num_rows;
  const bool together = share == Share::kGroup || whole_layer;
  selector_.Run(*context_, {.layer = block_.layer,
                            .first_head = first_head,
                            .num_heads = num_heads,
                            .together = together,
                            .first_position = Position(rows.begin),
                            .queries = raw_.data(),
                            .head_stride = head_stride,
                            .ends = ends_});
  for (int row = 0; row < rows.size(); ++row) {
    for (int head = 0; head < group_; ++head) {
      AddChosen(rows.begin + row, head, selector_.Picks(together ? 0 : head, row));
    }
  }
  for (int head = 0; head < group_; ++head) {
    if (share == Share::kLayers) KeepPicks(rows, head);
    if (slice().picks != nullptr && last_rows) {
      RecordPicks(head, selector_.Ranked(together ? 0 : head, rows.size() - 1));
    }
  }
}

void AttentionWorker::CollectVisits(std::span<const ChosenChunk> chosen, int64_t page) {
  const int64_t w = plan().selection.chunk_tokens;
  const int64_t pages_per_chunk = w / page_tokens_;
  visits_.clear();
  for (const ChosenChunk& c : chosen) {
    const int64_t visible = c.num_tokens - page * page_tokens_;
    if (visible <= 0) continue;
    // The chosen chunks stand side by side, the query's own one last.
    const int64_t distance = c.slots_after * w + c.offset - page * page_tokens_;
    const int64_t pages_after = c.slots_after * pages_per_chunk + c.offset / page_tokens_ - page;
    visits_.push_back({c.query, pages_after, 0,
                       static_cast<int>(std::min<int64_t>(page_tokens_, visible)), distance,
                       false});
  }
}

int64_t AttentionWorker::NumPagesSeen(std::span<const ChosenChunk> chosen) const {
  int64_t tokens = 0;
  for (const ChosenChunk& c : chosen) tokens = std::max<int64_t>(tokens, c.num_tokens);
  return (tokens + page_tokens_ - 1) / page_tokens_;
}

void AttentionWorker::BeginChunks() {
  chosen_.clear();
  next_chosen_ = 0;
  if (rows_.size() == 0) return;
  SelectChunks(rows_, qkv_);
  SortChosen();
  RotateQueries(rows_, stage(), &turned_);
  const int64_t pages_per_chunk = plan().selection.chunk_tokens / page_tokens_;
  for (size_t begin = 0; begin < chosen_.size();) {
    size_t end = begin;
    while (end < chosen_.size() && chosen_[end].chunk == chosen_[begin].chunk) ++end;
    const int64_t count = NumPagesSeen({&chosen_[begin], end - begin});
    for (int64_t n = 0; n < count; ++n) {
      pages_.push_back(chosen_[begin].chunk * pages_per_chunk + n);
    }
    begin = end;
  }
}

// Nothing of a plan with chunks is ever dropped: page 0 is the first.
void AttentionWorker::VisitChunk(int64_t page, int64_t next) {
  const int64_t pages_per_chunk = plan().selection.chunk_tokens / page_tokens_;
  const int64_t chunk = page / pages_per_chunk;
  while (chosen_[next_chosen_].chunk < chunk) ++next_chosen_;
  size_t end = next_chosen_;
  while (end < chosen_.size() && chosen_[end].chunk == chunk) ++end;
  CollectVisits({&chosen_[next_chosen_], end - next_chosen_}, page % pages_per_chunk);
  if (visits_.empty()) return;
  VisitPages(page, next, true);
}

}  // namespace folio
