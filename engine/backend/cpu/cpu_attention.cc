#include "engine/backend/cpu/cpu_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/backend/cpu/coca.h"

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
      if (context_->setup->coca_query == CocaQuery::kNone) {
        std::copy_n(q, g.head_dim, to);
      } else {
        FormCocaQuery(q, Position(row), to);
      }
      for (int d = 0; d < g.head_dim; ++d) to[d] *= row_scale;
      cpu::InitState(State(query(row, head)), dim_);
    }
  }
}

void AttentionWorker::FormCocaQuery(const float* q, int64_t position, float* to) const {
  const int half = context_->geometry().head_dim / 2;
  const CocaQuery form = context_->setup->coca_query;
  if (form != CocaQuery::kRaw) return CocaStrictQuery(form, q, half, to);
  const RopeTables& rope = *context_->rope;
  const int64_t page = position / page_tokens_;
  const int64_t offset = position % page_tokens_;
  std::array<float, kMaxHeadDim> partly;
  std::array<float, kMaxHeadDim> turned;
  const auto rotate = context_->kernels->rotate;
  rotate(q, rope.pages.Cos(page), rope.pages.Sin(page), 1.0f, half, partly.data());
  rotate(partly.data(), rope.positions.Cos(offset), rope.positions.Sin(offset), 1.0f, half,
         turned.data());
  CocaSlackQuery(q, turned.data(), half, to);
}

void AttentionWorker::RotateQueries(RowRange rows, const AttentionStage& stage,
                                    std::vector<float>* to) {
  const KvGeometry& g = context_->geometry();
  if (slack()) {
    *to = scaled_;  // turned already, where it was formed
    return;
  }
  to->assign(scaled_.size(), 0.0f);
  const RotationTable& positions = context_->rope->positions;
  const bool pinned = stage.distance == Distance::kPinned;
  const float* cos = pinned ? context_->rope->Fixed(stage.distance_limit).cos.data() : nullptr;
  const float* sin = pinned ? context_->rope->Fixed(stage.distance_limit).sin.data() : nullptr;
  for (int row = rows.begin; row < rows.end; ++row) {
    if (!pinned) {
      const int64_t position = QueryPosition(stage, Position(row));
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

void AttentionWorker::VisitPage(const Page& page, const std::vector<float>& queries) {
  const KvGeometry& g = context_->geometry();
  const RotationTable& pages = context_->rope->pages;
  // Slack queries are turned back by the start of the page instead of by what lies in between.
  const float sin_sign = slack() ? -1.0f : 1.0f;
  cpu::AttendPageArgs args;
  args.k = page_keys_.Read(*context_, *context_->rope,
                           context_->Keys(page.frame, block_.layer, block_.kv_head),
                           page.stored_rotated, page.rotated);
  args.v = context_->Values(page.frame, block_.layer, block_.kv_head);
  args.next_k = context_->Keys(page.next, block_.layer, block_.kv_head);
  args.next_v = context_->Values(page.next, block_.layer, block_.kv_head);
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
                                  sin_sign, g.head_dim / 2, to);
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
  const int64_t oldest = KeysOf(stage, plan().retention.num_sinks, Position(rows.begin)).begin;
  const int64_t first_page = std::max(slice().first_page, oldest / page_tokens_);
  const int64_t last_page = (last - stage.band_begin) / page_tokens_;
  RotateQueries(rows, stage, &turned_);
  for (int64_t page = first_page; page <= last_page; ++page) {
    const int64_t start = page * page_tokens_;
    visits_.clear();
    for (int row = rows.begin; row < rows.end; ++row) {
      const int64_t i = Position(row);
      const KeyRange keys = KeysOf(stage, plan().retention.num_sinks, i);
      const int64_t lo = std::max<int64_t>(0, keys.begin - start);
      const int64_t hi = std::min<int64_t>(page_tokens_, keys.end - start);
      if (lo >= hi) continue;
      const int64_t turn = pinned ? 0 : slack() ? page : i / page_tokens_ - page;
      for (int head = 0; head < group_; ++head) {
        visits_.push_back({query(row, head), turn, static_cast<int>(lo), static_cast<int>(hi),
                           pinned ? stage.distance_limit : i - start, pinned});
      }
    }
    if (visits_.empty()) continue;
    VisitPage({slice().pages[page - slice().first_page],
               slice().pages[std::min(page + 1, last_page) - slice().first_page],
               !context_->raw_keys(), !pinned},
              turned_);
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
      const int64_t end = KeysOf(stage, plan().retention.num_sinks, Position(row)).end;
      const int64_t hi = std::min<int64_t>(page_tokens_, end - start);
      if (hi <= 0) continue;
      const int64_t at = QueryPosition(stage, Position(row));
      for (int head = 0; head < group_; ++head) {
        visits_.push_back(
            {query(row, head), pinned ? 0 : at / page_tokens_ - static_cast<int64_t>(page), 0,
             static_cast<int>(hi), pinned ? stage.distance_limit : at - start, pinned});
      }
    }
    // Sinks lie in the form that their stage reads.
    const FrameId frame = slice().sinks[page];
    if (!visits_.empty()) VisitPage({frame, frame, !pinned, !pinned}, turned_);
  }
}

void AttentionWorker::ChooseTokens(const float* q, int64_t begin, int64_t end) {
  const KvGeometry& g = context_->geometry();
  const int64_t tile_bytes = int64_t{kTile} * dim_ * DTypeBytes(g.dtype);
  float scores[kTile];
  tokens_.clear();
  for (int64_t page = begin / page_tokens_; page * page_tokens_ < end; ++page) {
    const FrameId frame = slice().pages[page - slice().first_page];
    const std::byte* keys =
        page_keys_.Read(*context_, *context_->rope,
                        context_->Keys(frame, block_.layer, block_.kv_head), false, false);
    for (int tile = 0; tile < page_tokens_ / kTile; ++tile) {
      const int64_t first = page * page_tokens_ + tile * kTile;
      if (first + kTile <= begin || first >= end) continue;
      context_->kernels->score_tile(g.dtype, keys + tile * tile_bytes, dim_, q, scores);
      for (int lane = 0; lane < kTile; ++lane) {
        const int64_t token = first + lane;
        if (token >= begin && token < end) RankToken({scores[lane], token});
      }
    }
  }
}

void AttentionWorker::RankToken(ScoredToken token) {
  if (std::ssize(tokens_) == plan().top_tokens.count) {
    if (!(token.score > tokens_.back().score)) return;
    tokens_.pop_back();
  }
  // Behind equal scores: the smaller index wins.
  const auto at = std::find_if(tokens_.begin(), tokens_.end(),
                               [&](const ScoredToken& other) { return other.score < token.score; });
  tokens_.insert(at, token);
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
  for (int row = rows.begin; row < rows.end; ++row) {
    const int64_t i = Position(row);
    const KeyRange keys = KeysOf(stage, plan().retention.num_sinks, i);
    if (!ChoosesTokens(plan(), i, block_.layer)) continue;
    if (NumTokensTaken(plan().top_tokens, keys.size()) == 0) continue;
    RotateQueries({row, row + 1}, stage, &turned_);
    for (int head = 0; head < group_; ++head) {
      const int q = query(row, head);
      ChooseTokens(&turned_[int64_t{q} * dim_], keys.begin, keys.end);
      const float bias = context_->setup->alibi_slopes.empty()
                             ? 0.0f
                             : -Slope(q) * static_cast<float>(stage.distance_limit);
      for (const ScoredToken& t : tokens_) FoldToken(t.token, t.score + bias, State(q));
    }
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
