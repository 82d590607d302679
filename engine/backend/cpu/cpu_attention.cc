#include "engine/backend/cpu/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace folio {

using cpu::kQueryRows;
using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

namespace {

constexpr int kBlockQueries = 256;

}  // namespace

int AttentionWorker::BlockTokens(const KvGeometry& geometry) {
  return std::max(1, kBlockQueries / (geometry.num_heads / geometry.num_kv_heads));
}

void AttentionWorker::Run(const Block& block, const float* qkv, float* out) {
  context_ = block.context;
  block_ = block;
  qkv_ = qkv;
  const KvGeometry& g = context_->geometry();
  group_ = context_->group_size();
  dim_ = g.padded_dim;
  page_tokens_ = g.page_tokens;
  LoadQueries(qkv);
  for (const AttentionStage& stage : plan().stages) {
    switch (stage.keys) {
      case Keys::kContext:
        RunContext(stage);
        break;
      case Keys::kSinks:
        RunSinks(stage);
        break;
      case Keys::kTopTokens:
        RunTopTokens(stage);
        break;
      case Keys::kChunks:
        RunChunks(stage);
        break;
    }
  }
  WriteOutput(out);
}

void AttentionWorker::LoadQueries(const float* qkv) {
  const KvGeometry& g = context_->geometry();
  const int num_queries = block_.num_rows * group_;
  scaled_.assign(static_cast<size_t>(num_queries) * dim_, 0.0f);
  states_.resize(static_cast<size_t>(num_queries) * (dim_ + 2));
  rotated_.assign(static_cast<size_t>(kQueryRows) * dim_, 0.0f);
  value_.assign(dim_, 0.0f);
  const float scale = context_->Scale(*context_->rope);
  for (int row = 0; row < block_.num_rows; ++row) {
    const float row_scale = scale * EntropyFactor(plan(), Position(row), block_.layer);
    for (int head = 0; head < group_; ++head) {
      const float* q = context_->Query(qkv, block_.first_row + row, head_of_model(head));
      float* to = &scaled_[int64_t{query(row, head)} * dim_];
      for (int d = 0; d < g.head_dim; ++d) to[d] = q[d] * row_scale;
      cpu::InitState(State(query(row, head)), dim_);
    }
  }
}

void AttentionWorker::RotateQueries(RowRange rows, const AttentionStage& stage,
                                    std::vector<float>* to) {
  const KvGeometry& g = context_->geometry();
  to->assign(scaled_.size(), 0.0f);
  const RotationTable& positions = context_->rope->positions;
  const bool pinned = stage.distance == Distance::kPinned;
  const float* cos = pinned ? context_->rope->Fixed(stage.distance_limit).cos.data() : nullptr;
  const float* sin = pinned ? context_->rope->Fixed(stage.distance_limit).sin.data() : nullptr;
  for (int row = rows.begin; row < rows.end; ++row) {
    if (!pinned) {
      int64_t position = Position(row);
      if (stage.distance == Distance::kClamped) position = std::min(position, stage.distance_limit);
      cos = positions.Cos(position % page_tokens_);
      sin = positions.Sin(position % page_tokens_);
    }
    for (int head = 0; head < group_; ++head) {
      const int64_t at = int64_t{query(row, head)} * dim_;
      context_->kernels->rotate(&scaled_[at], cos, sin, 1.0f, g.head_dim / 2, &(*to)[at]);
    }
  }
}

float AttentionWorker::Slope(int query) const {
  return context_->setup->alibi_slopes[head_of_model(query % group_)];
}

void AttentionWorker::VisitPage(FrameId frame, FrameId next, Form form,
                                const std::vector<float>& queries) {
  const KvGeometry& g = context_->geometry();
  const RotationTable& pages = context_->rope->pages;
  cpu::AttendPageArgs args;
  args.k = form == Form::kRotated
               ? page_keys_.Rotated(*context_, *context_->rope, frame, block_.layer, block_.kv_head)
               : context_->Keys(frame, block_.layer, block_.kv_head);
  args.v = context_->Values(frame, block_.layer, block_.kv_head);
  args.next_k = context_->Keys(next, block_.layer, block_.kv_head);
  args.next_v = context_->Values(next, block_.layer, block_.kv_head);
  args.dim = dim_;
  args.q = rotated_.data();
  args.biased = !context_->setup->alibi_slopes.empty();
  for (size_t first = 0; first < visits_.size(); first += kQueryRows) {
    args.num_rows = static_cast<int>(std::min<size_t>(kQueryRows, visits_.size() - first));
    for (int r = 0; r < args.num_rows; ++r) {
      const Visit& visit = visits_[first + r];
      const float* q = &queries[int64_t{visit.query} * dim_];
      float* to = &rotated_[r * dim_];
      if (visit.page_distance == 0) {
        std::copy(q, q + dim_, to);
      } else {
        context_->kernels->rotate(q, pages.Cos(visit.page_distance), pages.Sin(visit.page_distance),
                                  1.0f, g.head_dim / 2, to);
      }
      args.lo[r] = visit.lo;
      args.hi[r] = visit.hi;
      args.state[r] = State(visit.query);
      if (args.biased) {
        const float slope = Slope(visit.query);
        args.bias[r] = -slope * static_cast<float>(visit.distance);
        args.bias_slope[r] = visit.pinned ? 0.0f : slope;
      }
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
  const RowRange rows = CoveredRows(stage);
  if (rows.size() == 0) return;
  const int64_t last = Position(rows.end - 1);
  if (last < stage.band_begin) return;
  const bool pinned = stage.distance == Distance::kPinned;
  const int64_t oldest = stage.band_end > last ? 0 : Position(rows.begin) - stage.band_end + 1;
  const int64_t first_page =
      std::max(slice().first_page, std::max<int64_t>(0, oldest) / page_tokens_);
  const int64_t last_page = (last - stage.band_begin) / page_tokens_;
  RotateQueries(rows, stage, &turned_);
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
        visits_.push_back({query(row, head), pinned ? 0 : i / page_tokens_ - page,
                           static_cast<int>(lo), static_cast<int>(hi),
                           pinned ? stage.distance_limit : i - start, pinned});
      }
    }
    if (visits_.empty()) continue;
    VisitPage(slice().pages[page - slice().first_page],
              slice().pages[std::min(page + 1, last_page) - slice().first_page],
              pinned ? Form::kStored : Form::kRotated, turned_);
  }
}

void AttentionWorker::RunSinks(const AttentionStage& stage) {
  const RowRange rows = CoveredRows(stage);
  if (rows.size() == 0 || Position(rows.end - 1) < stage.band_begin) return;
  const bool pinned = stage.distance == Distance::kPinned;
  RotateQueries(rows, stage, &turned_);
  for (size_t page = 0; page < slice().sinks.size(); ++page) {
    const int64_t start = static_cast<int64_t>(page) * page_tokens_;
    visits_.clear();
    for (int row = rows.begin; row < rows.end; ++row) {
      const int64_t end =
          std::min<int64_t>(plan().retention.num_sinks, Position(row) - stage.band_begin + 1);
      const int64_t hi = std::min<int64_t>(page_tokens_, end - start);
      if (hi <= 0) continue;
      const int64_t at = std::min(Position(row), stage.distance_limit);
      for (int head = 0; head < group_; ++head) {
        visits_.push_back(
            {query(row, head), pinned ? 0 : at / page_tokens_ - static_cast<int64_t>(page), 0,
             static_cast<int>(hi), pinned ? stage.distance_limit : at - start, pinned});
      }
    }
    // Sinks lie in the form that their stage reads.
    if (!visits_.empty()) {
      VisitPage(slice().sinks[page], slice().sinks[page], Form::kStored, turned_);
    }
  }
}

void AttentionWorker::ChooseTokens(const float* q, int64_t begin, int64_t end) {
  const KvGeometry& g = context_->geometry();
  const int64_t tile_bytes = int64_t{kTile} * dim_ * DTypeBytes(g.dtype);
  const size_t count = plan().top_tokens.count;
  float scores[kTile];
  tokens_.clear();
  for (int64_t tile = begin / kTile; tile * kTile < end; ++tile) {
    const int64_t page = tile * kTile / page_tokens_;
    const std::byte* keys =
        context_->Keys(slice().pages[page - slice().first_page], block_.layer, block_.kv_head);
    context_->kernels->score_tile(g.dtype, keys + (tile - page * page_tokens_ / kTile) * tile_bytes,
                                  dim_, q, scores);
    for (int lane = 0; lane < kTile; ++lane) {
      const int64_t token = tile * kTile + lane;
      if (token < begin || token >= end) continue;
      if (tokens_.size() == count) {
        if (!(scores[lane] > tokens_.back().score)) continue;
        tokens_.pop_back();
      }
      // Behind equal scores: the smaller index wins.
      const auto at = std::find_if(tokens_.begin(), tokens_.end(), [&](const ScoredToken& other) {
        return other.score < scores[lane];
      });
      tokens_.insert(at, {scores[lane], token});
    }
  }
}

void AttentionWorker::FoldToken(int64_t token, float score, float* state) {
  const int64_t page = token / page_tokens_;
  const FrameId frame = slice().pages[page - slice().first_page];
  ReadValue(context_->geometry(), context_->Values(frame, block_.layer, block_.kv_head),
            static_cast<int>(token % page_tokens_), value_.data());
  const float max = std::max(state[dim_], score);
  const float keep = std::exp(state[dim_] - max);
  const float weight = std::exp(score - max);
  for (int d = 0; d < dim_; ++d) state[d] = state[d] * keep + weight * value_[d];
  state[dim_] = max;
  state[dim_ + 1] = state[dim_ + 1] * keep + weight;
}

void AttentionWorker::RunTopTokens(const AttentionStage& stage) {
  const RowRange rows = CoveredRows(stage);
  const TokenSelection& select = plan().top_tokens;
  for (int row = rows.begin; row < rows.end; ++row) {
    const int64_t i = Position(row);
    const int64_t begin = plan().retention.num_sinks;
    const int64_t end = i - stage.band_begin + 1;
    if (!ChoosesTokens(plan(), i, block_.layer) || end <= begin) continue;
    if (select.all_or_none && end - begin < select.count) continue;
    RotateQueries({row, row + 1}, stage, &turned_);
    for (int head = 0; head < group_; ++head) {
      const int q = query(row, head);
      ChooseTokens(&turned_[int64_t{q} * dim_], begin, end);
      const float bias = context_->setup->alibi_slopes.empty()
                             ? 0.0f
                             : -Slope(q) * static_cast<float>(stage.distance_limit);
      for (const ScoredToken& t : tokens_) FoldToken(t.token, t.score + bias, State(q));
    }
  }
}

void AttentionWorker::AddChosen(int row, int head, std::span<const int64_t> picks) {
  const ChunkView view =
      ViewChunks(plan().selection, Position(row), plan().IsPromptRow(Position(row)));
  // In ascending order: the first, the picks, the previous, the own one.
  int slots_after = static_cast<int>(picks.size()) + view.num_forced;
  const auto add = [&](int64_t chunk) {
    chosen_.push_back({chunk, query(row, head), slots_after--});
  };
  int forced = 0;
  if (view.num_forced > 0 && view.forced[0] == 0) add(view.forced[forced++]);
  for (int64_t chunk : picks) add(chunk);
  while (forced < view.num_forced) add(view.forced[forced++]);
  add(view.own);
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

void AttentionWorker::KeepChoice(RowRange rows, int head) {
  SharedChoice& choice = *context_->choice;
  for (int row = 0; row < rows.size(); ++row) {
    const int64_t step_row = slice().row_begin + block_.first_row + rows.begin + row;
    const int64_t at = step_row * context_->geometry().num_heads + head_of_model(head);
    const std::span<const int64_t> picks = selector_.Picks(row);
    choice.counts[at] = static_cast<int>(picks.size());
    std::copy(picks.begin(), picks.end(), &choice.picks[at * choice.picks_per_head]);
  }
}

void AttentionWorker::TakeOverChoice(RowRange rows) {
  const SharedChoice& choice = *context_->choice;
  for (int head = 0; head < group_; ++head) {
    for (int row = rows.begin; row < rows.end; ++row) {
      const int64_t step_row = slice().row_begin + block_.first_row + row;
      const int64_t at = step_row * context_->geometry().num_heads + head_of_model(head);
      AddChosen(
          row, head,
          {&choice.picks[at * choice.picks_per_head], static_cast<size_t>(choice.counts[at])});
    }
  }
}

void AttentionWorker::SelectChunks(RowRange rows, const float* qkv) {
  using Share = ChunkSelection::Share;
  const KvGeometry& g = context_->geometry();
  const Share share = plan().selection.share;
  if (share == Share::kLayers && block_.layer > 0) return TakeOverChoice(rows);
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
  const bool shared = share == Share::kGroup || whole_layer;
  for (int head = 0; head < group_; ++head) {
    if (!shared || head == 0) {
      const int scored = shared ? 0 : head;
      selector_.Run(*context_, {.layer = block_.layer,
                                .first_head = first_head + scored,
                                .num_heads = shared ? num_heads : 1,
                                .first_position = Position(rows.begin),
                                .queries = raw_.data() + scored * head_stride,
                                .head_stride = head_stride,
                                .ends = ends_});
    }
    for (int row = 0; row < rows.size(); ++row) {
      AddChosen(rows.begin + row, head, selector_.Picks(row));
    }
    if (share == Share::kLayers) KeepChoice(rows, head);
    if (slice().picks != nullptr && last_rows) {
      RecordPicks(head, selector_.Ranked(rows.size() - 1));
    }
  }
}

void AttentionWorker::CollectVisits(std::span<const ChosenChunk> chosen, int64_t page) {
  const int64_t w = plan().selection.chunk_tokens;
  visits_.clear();
  for (const ChosenChunk& c : chosen) {
    const int64_t i = Position(c.query / group_);
    const int64_t offset = i % w;
    // The chosen chunks stand side by side, the query's own one last.
    const int64_t distance = c.slots_after * w + offset - page * page_tokens_;
    const int64_t own_tokens = ViewChunks(plan().selection, i, plan().IsPromptRow(i)).own_tokens;
    const int64_t visible = (c.slots_after == 0 ? own_tokens : w) - page * page_tokens_;
    if (visible <= 0) continue;
    visits_.push_back({c.query, c.slots_after * (w / page_tokens_) + offset / page_tokens_ - page,
                       0, static_cast<int>(std::min<int64_t>(page_tokens_, visible)), distance,
                       false});
  }
}

void AttentionWorker::RunChunks(const AttentionStage& stage) {
  const RowRange rows = CoveredRows(stage);
  if (rows.size() == 0) return;
  chosen_.clear();
  SelectChunks(rows, qkv_);
  std::sort(chosen_.begin(), chosen_.end());
  RotateQueries(rows, stage, &turned_);
  // Nothing of a plan with chunks is ever dropped: page 0 is the first.
  const std::span<const FrameId> pages = slice().pages;
  const int64_t pages_per_chunk = plan().selection.chunk_tokens / page_tokens_;
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
      const int64_t next =
          last ? page_after
               : std::min<int64_t>(first_page + page + 1, static_cast<int64_t>(pages.size()) - 1);
      VisitPage(pages[first_page + page], pages[next], Form::kRotated, turned_);
    }
    begin = end;
  }
}

void AttentionWorker::WriteOutput(float* out) const {
  const KvGeometry& g = context_->geometry();
  for (int row = 0; row < block_.num_rows; ++row) {
    const int64_t step_row = slice().row_begin + block_.first_row + row;
    for (int head = 0; head < group_; ++head) {
      const float* state = &states_[int64_t{query(row, head)} * (dim_ + 2)];
      float* to = out + (step_row * g.num_heads + head_of_model(head)) * g.head_dim;
      const float norm = 1.0f / state[dim_ + 1];
      for (int d = 0; d < g.head_dim; ++d) to[d] = state[d] * norm;
    }
  }
}

}  // namespace folio
