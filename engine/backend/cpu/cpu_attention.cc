#include "engine/backend/cpu/cpu_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/backend/cpu/coca.h"

namespace folio {

using cpu::kPageRows;
using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

namespace {

constexpr int kBlockQueries = 256;

}  // namespace

int AttentionWorker::BlockTokens(const KvGeometry& geometry) {
  return std::max(1, kBlockQueries / (geometry.num_heads / geometry.num_kv_heads));
}

void AttentionWorker::Run(const Block& block, const float* qkv, float* out) {
  Begin(block, qkv);
  for (int pass = 0; pass < num_passes(); ++pass) {
    BeginPass(pass);
    VisitBefore(kUnbounded);
    EndPass();
  }
  Finish(out);
}

void AttentionWorker::BeginBlock(const Block& block) {
  context_ = block.context;
  block_ = block;
  const KvGeometry& g = context_->geometry();
  group_ = block.num_heads;
  dim_ = g.padded_dim;
  page_tokens_ = g.page_tokens;
  segment_ = kNoSegment;
  segment_states_ = nullptr;
  InitStates(&states_);
}

void AttentionWorker::InitStates(std::vector<float>* states) const {
  states->resize(num_queries() * state_floats());
  for (int query = 0; query < num_queries(); ++query) {
    cpu::InitState(states->data() + query * state_floats(), dim_);
  }
}

void AttentionWorker::Begin(const Block& block, const float* qkv) {
  BeginBlock(block);
  qkv_ = qkv;
  passes_.clear();
  for (const AttentionStage& stage : plan().stages) {
    passes_.push_back({&stage, false});
    if (stage.keys == Keys::kTopTokens) passes_.push_back({&stage, true});
  }
  LoadQueries(qkv);
}

void AttentionWorker::BeginPass(int pass) {
  pass_ = pass;
  rows_ = CoveredRows(stage());
  pages_.clear();
  next_page_ = 0;
  switch (stage().keys) {
    case Keys::kContext:
      return BeginContext();
    case Keys::kSinks:
      return RunSinks();
    case Keys::kTopTokens:
      return passes_[pass].reads_tokens ? BeginTokenValues() : BeginTokenScores();
    case Keys::kChunks:
      return BeginChunks();
  }
}

void AttentionWorker::VisitBefore(int64_t end) {
  while (next_page_ < pages_.size() && pages_[next_page_] < end) {
    const int64_t page = pages_[next_page_++];
    const bool more = next_page_ < pages_.size() && pages_[next_page_] < end;
    const int64_t next = more ? pages_[next_page_] : page;
    switch (stage().keys) {
      case Keys::kContext:
        VisitContext(page, next);
        break;
      case Keys::kSinks:
        break;  // are no pages
      case Keys::kTopTokens:
        passes_[pass_].reads_tokens ? ReadTokenValues(page) : ScoreTokens(page);
        break;
      case Keys::kChunks:
        VisitChunk(page, next);
        break;
    }
  }
}

void AttentionWorker::EndPass() {
  if (passes_[pass_].reads_tokens) FoldTokens();
  if (stage().keys == Keys::kContext) EndSegment();
}

void AttentionWorker::LoadQueries(const float* qkv) {
  const KvGeometry& g = context_->geometry();
  scaled_.assign(num_queries() * dim_, 0.0f);
  rotated_.assign(static_cast<size_t>(kPageRows) * dim_, 0.0f);
  const float scale = context_->Scale(rope());
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
    }
  }
}

void AttentionWorker::FormCocaQuery(const float* q, int64_t position, float* to) const {
  const int half = context_->geometry().head_dim / 2;
  const CocaQuery form = context_->setup->coca_query;
  if (form != CocaQuery::kRaw) return CocaStrictQuery(form, q, half, to);
  const RopeTables& rope = this->rope();
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
  const RotationTable& positions = rope().positions;
  const bool pinned = stage.distance == Distance::kPinned;
  const float* cos = pinned ? rope().Fixed(stage.distance_limit).cos.data() : nullptr;
  const float* sin = pinned ? rope().Fixed(stage.distance_limit).sin.data() : nullptr;
  for (int row = rows.begin; row < rows.end; ++row) {
    if (!pinned) {
      const int64_t position = QueryPosition(stage, Position(row));
      cos = positions.Cos(position % page_tokens_);
      sin = positions.Sin(position % page_tokens_);
    }
    const int64_t at = int64_t{query(row, 0)} * dim_;
    context_->kernels->rotate_rows(&scaled_[at], group_, dim_, cos, sin, 1.0f, g.head_dim / 2,
                                   &(*to)[at]);
  }
}

float AttentionWorker::Slope(int query) const {
  return context_->setup->alibi_slopes[head_of_model(query % group_)];
}

// Those that read it open come first: later queries read it sealed.
void AttentionWorker::VisitPages(int64_t page, int64_t next, bool rotated) {
  const bool stored_rotated = !context_->raw_keys();
  const std::span<const Visit> visits = visits_;
  const auto first_sealed = std::find_if(
      visits.begin(), visits.end(), [&](const Visit& v) { return IsSealedFor(page, v.query); });
  const auto num_open = static_cast<size_t>(first_sealed - visits.begin());
  if (num_open > 0) {
    VisitPage({Slice(page, false), Slice(next, false), {false, stored_rotated, rotated}},
              visits.first(num_open));
  }
  if (num_open == visits.size()) return;
  VisitPage({Slice(page, true), Slice(next, true), {true, stored_rotated, rotated, true}},
            visits.subspan(num_open));
}

// Heads of a row are turned by one rotation.
void AttentionWorker::RotateToPage(std::span<const Visit> visits) {
  const RotationTable& pages = rope().pages;
  // Slack queries are turned back by the start of the page instead of by what lies in between.
  const float sin_sign = slack() ? -1.0f : 1.0f;
  const int half = context_->geometry().head_dim / 2;
  for (size_t begin = 0; begin < visits.size();) {
    const Visit& first = visits[begin];
    int num_rows = 1;
    for (const Visit& visit : visits.subspan(begin + 1)) {
      if (visit.query != first.query + num_rows) break;
      if (visit.page_distance != first.page_distance) break;
      ++num_rows;
    }
    const float* const from = &turned_[int64_t{first.query} * dim_];
    float* const to = &rotated_[begin * dim_];
    if (first.page_distance == 0) {
      std::copy_n(from, num_rows * dim_, to);
    } else {
      context_->kernels->rotate_rows(from, num_rows, dim_, pages.Cos(first.page_distance),
                                     pages.Sin(first.page_distance), sin_sign, half, to);
      // The next page is this much nearer, and the cache has been read since the table was.
      pages.Fetch(first.page_distance - 1);
    }
    begin += num_rows;
  }
}

void AttentionWorker::VisitPage(const Page& page, std::span<const Visit> visits) {
  const KvGeometry& g = context_->geometry();
  cpu::AttendPageArgs args;
  const PageNumbers numbers = page_reader_.Read(*context_, rope(), page.slice, page.form);
  args.k = numbers.k;
  args.v = numbers.v;
  args.k_scales = numbers.k_scales;
  args.v_scales = numbers.v_scales;
  args.next_k = page.next;
  args.next_v = page.next + (page.form.sealed ? g.sealed_key_bytes() : g.key_bytes());
  args.dim = dim_;
  args.q = rotated_.data();
  args.score_cap = context_->setup->views.score_cap;
  args.biased = !context_->setup->alibi_slopes.empty();
  for (size_t first = 0; first < visits.size(); first += kPageRows) {
    args.num_rows = static_cast<int>(std::min<size_t>(kPageRows, visits.size() - first));
    RotateToPage(visits.subspan(first, args.num_rows));
    for (int r = 0; r < args.num_rows; ++r) {
      const Visit& visit = visits[first + r];
      args.lo[r] = visit.lo;
      args.hi[r] = visit.hi;
      args.state[r] = State(visit.query);
      if (args.biased) {
        const float slope = Slope(visit.query);
        args.bias[r] = -slope * static_cast<float>(visit.distance);
        args.bias_slope[r] = visit.pinned ? 0.0f : slope;
      }
    }
    if (numbers.k_scales != nullptr) {
      context_->kernels->attend_sealed_page(g.sealed_bits, page_tokens_, args);
    } else {
      context_->kernels->attend_page(g.dtype, page_tokens_, args);
    }
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

void AttentionWorker::RunSinks() {
  if (rows_.size() == 0 || Position(rows_.end - 1) < stage().band_begin) return;
  const bool pinned = stage().distance == Distance::kPinned;
  RotateQueries(rows_, stage(), &turned_);
  for (size_t page = 0; page < slice().sinks.size(); ++page) {
    const int64_t start = static_cast<int64_t>(page) * page_tokens_;
    visits_.clear();
    for (int row = rows_.begin; row < rows_.end; ++row) {
      const int64_t end = KeysOf(stage(), plan().retention.num_sinks, Position(row)).end;
      const int64_t hi = std::min<int64_t>(page_tokens_, end - start);
      if (hi <= 0) continue;
      const int64_t at = QueryPosition(stage(), Position(row));
      for (int head = 0; head < group_; ++head) {
        visits_.push_back(
            {query(row, head), pinned ? 0 : at / page_tokens_ - static_cast<int64_t>(page), 0,
             static_cast<int>(hi), pinned ? stage().distance_limit : at - start, pinned});
      }
    }
    if (visits_.empty()) continue;
    // Sinks lie in the form that their stage reads.
    const std::byte* sink = context_->SinkSlice(slice().sinks[page], block_.layer, block_.kv_head);
    VisitPage({sink, sink, {false, !pinned, !pinned}}, visits_);
  }
}

void AttentionWorker::Finish(float* out) const {
  const KvGeometry& g = context_->geometry();
  for (int row = 0; row < block_.num_rows; ++row) {
    const int64_t step_row = slice().row_begin + block_.first_row + row;
    for (int head = 0; head < group_; ++head) {
      const float* state = &states_[query(row, head) * state_floats()];
      float* to = out + (step_row * g.num_heads + head_of_model(head)) * g.head_dim;
      const float norm = 1.0f / state[dim_ + 1];
      for (int d = 0; d < g.head_dim; ++d) to[d] = state[d] * norm;
    }
  }
}

}  // namespace folio
