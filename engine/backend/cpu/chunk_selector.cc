#include "engine/backend/cpu/chunk_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "engine/backend/cpu/coarse_summary.h"
#include "engine/base/splitmix.h"

namespace folio {

using cpu::kQueryRows;
using cpu::kScoreRows;

namespace {

// A uniform number from what identifies a candidate.
float RandomScore(int layer, int head, int64_t position, int64_t chunk) {
  const uint64_t z = static_cast<uint64_t>(chunk) + 0x9e3779b97f4a7c15u * (position + 1) +
                     0xd1b54a32d192ed03u * (uint64_t{static_cast<uint32_t>(layer)} << 32 | head);
  return static_cast<float>(SplitMix64(z) >> 40);
}

}  // namespace

void ChunkSelector::Offer(size_t list, float score, int64_t chunk) {
  Pick* best = &best_[list * capacity_];
  int& count = counts_[list];
  // Chunks come in ascending order, so an equal score never displaces an earlier one.
  if (count == static_cast<int>(capacity_)) {
    if (!(score > best[count - 1].score)) return;
    --count;
  }
  int at = count++;
  for (; at > 0 && best[at - 1].score < score; --at) best[at] = best[at - 1];
  best[at] = {score, chunk};
}

float ChunkSelector::Threshold(size_t list) const {
  return counts_[list] == static_cast<int>(capacity_) ? best_[(list + 1) * capacity_ - 1].score
                                                      : -std::numeric_limits<float>::infinity();
}

ChunkSelector::Shape ChunkSelector::ShapeOf(const SummaryLayout& layout, const Rows& rows) {
  Shape shape;
  shape.rows = static_cast<int>(rows.ends.size());
  const int summaries = rows.together ? rows.num_heads / layout.tiles_per_frame : 1;
  shape.terms = layout.vectors * summaries;
  shape.heads = rows.together || layout.tiles_per_frame == 1 ? 1 : rows.num_heads;
  shape.num_sets = rows.together ? 1 : rows.num_heads / shape.heads;
  return shape;
}

void ChunkSelector::ScoreTerm(const CpuAttentionContext& context, int layer, const Term& term,
                              int first, int64_t tile, int64_t next_tile,
                              cpu::ScoreChunksArgs* args) const {
  const std::span<const FrameId> frames = context.slice->summaries;
  const auto tile_at = [&](int64_t n) {
    const SummaryLayout::Place place = layout_.PlaceOf(n, term.head, term.vector);
    return context.SummaryTile(frames[place.frame], layer, place.head);
  };
  args->tile = tile_at(tile);
  args->next = first == 0 ? tile_at(next_tile) : args->tile;
  args->q =
      packed_ + term.queries + context.kernels->chunk_query_bytes(args->dtype, first, args->dim);
  context.kernels->score_chunks(args);
}

void ChunkSelector::Score(const CpuAttentionContext& context, const Rows& rows, int set, int first,
                          int64_t tile, int64_t next_tile, cpu::ScoreChunksArgs* args) const {
  const std::span<const Term> terms(&terms_[set * shape_.terms], shape_.terms);
  const int64_t lists = int64_t{set} * shape_.lists() + first;
  for (int r = 0; r < args->num_rows; ++r) args->thresholds[r] = Threshold(lists + r);
  if (terms.size() == 1) {
    return ScoreTerm(context, rows.layer, terms[0], first, tile, next_tile, args);
  }
  std::array<float, kScoreRows* kTile> sums = {};
  for (const Term& term : terms) {
    ScoreTerm(context, rows.layer, term, first, tile, next_tile, args);
    for (int at = 0; at < args->num_rows * kTile; ++at) sums[at] += args->scores[at];
  }
  for (int r = 0; r < args->num_rows; ++r) {
    uint32_t above = 0;
    for (int lane = 0; lane < kTile; ++lane) {
      const float score = sums[r * kTile + lane];
      args->scores[r * kTile + lane] = score;
      above |= (score > args->thresholds[r] ? 1u : 0u) << lane;
    }
    args->above[r] = above;
  }
}

void ChunkSelector::ScoreTile(const CpuAttentionContext& context, const Rows& rows, int set,
                              int64_t tile, int64_t next_tile) {
  cpu::ScoreChunksArgs args;
  args.dtype = context.geometry().dtype;
  args.dim = context.geometry().padded_dim;
  for (int first = 0; first < shape_.lists(); first += kScoreRows) {
    args.num_rows = std::min(kScoreRows, shape_.lists() - first);
    if (rows.ends[RowOf(first + args.num_rows - 1)] - 1 < tile * kTile) continue;
    Score(context, rows, set, first, tile, next_tile, &args);
    for (int r = 0; r < args.num_rows; ++r) {
      const int64_t end = rows.ends[RowOf(first + r)];
      // Ascending: the threshold only rises, and equal scores keep the smaller index.
      for (uint32_t mask = args.above[r]; mask != 0; mask &= mask - 1) {
        const int lane = std::countr_zero(mask);
        const int64_t chunk = tile * kTile + lane;
        if (chunk < 1 || chunk >= end) continue;
        Offer(int64_t{set} * shape_.lists() + first + r, args.scores[r * kTile + lane], chunk);
      }
    }
  }
}

void ChunkSelector::CollectQueries(const Rows& rows, int dim, int first_head, int heads,
                                   float (*part)(float)) {
  queries_.assign(static_cast<size_t>(shape_.lists()) * dim, 0.0f);
  const float weight = rows.together ? 1.0f / static_cast<float>(rows.num_heads) : 1.0f;
  for (int row = 0; row < shape_.rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      const float* q = rows.queries + (first_head + head) * rows.head_stride + int64_t{row} * dim;
      const int list = row * shape_.heads + (rows.together ? 0 : head);
      float* to = &queries_[static_cast<size_t>(list) * dim];
      for (int d = 0; d < dim; ++d) to[d] += part(q[d]) * weight;
    }
  }
}

void ChunkSelector::AddTerm(const CpuAttentionContext& context, int head, int vector) {
  const KvGeometry& g = context.geometry();
  const int64_t begin = std::ssize(terms_) * term_bytes_;
  context.kernels->pack_chunk_queries(g.dtype, queries_.data(), shape_.lists(), g.padded_dim,
                                      packed_ + begin);
  terms_.push_back({begin, head, vector});
  plain_queries_.insert(plain_queries_.end(), queries_.begin(), queries_.end());
}

void ChunkSelector::MakeTerms(const CpuAttentionContext& context, const Rows& rows) {
  const KvGeometry& g = context.geometry();
  terms_.clear();
  plain_queries_.clear();
  const int64_t bytes = context.kernels->chunk_query_bytes(g.dtype, shape_.lists(), g.padded_dim);
  term_bytes_ = (bytes + 63) / 64 * 64;
  packed_ = scratch_.Get<std::byte>(shape_.num_sets * shape_.terms * term_bytes_);
  const int heads = rows.together ? layout_.tiles_per_frame : shape_.heads;
  for (int h = 0; h < rows.num_heads; h += heads) {
    const auto add = [&](int vector, float (*part)(float)) {
      CollectQueries(rows, g.padded_dim, h, heads, part);
      AddTerm(context, rows.first_head + h, vector);
    };
    if (context.plan().selection.scorer != ChunkSelection::Scorer::kQuest) {
      add(0, [](float x) { return x; });
      continue;
    }
    // sum_x max(q_x max_x, q_x min_x) = <max(q, 0), max> + <min(q, 0), min>
    add(0, [](float x) { return std::max(x, 0.0f); });
    add(1, [](float x) { return std::min(x, 0.0f); });
  }
}

// Tiles outside, rows inside: a tile is read once for all rows. Few rows leave room in the cache
// for the queries of all sets, whose tiles lie side by side: they are read in one stream.
void ChunkSelector::Scan(const CpuAttentionContext& context, const Rows& rows) {
  if (rows.ends.back() < 2) return;
  // A score of several products, or rows that would share the reading, take the summaries at once.
  const int64_t first_tile = shape_.rows > 1 || shape_.terms > 1
                                 ? 0
                                 : NumCoarseTiles(context.geometry(), layout_, rows.ends[0],
                                                  static_cast<int64_t>(capacity_) * shape_.lists());
  if (first_tile > 0) ScanCoarsely(context, rows, first_tile);
  const int64_t last_tile = (rows.ends.back() - 1) / kTile;
  const int at_a_time = shape_.rows <= kQueryRows ? shape_.num_sets : 1;
  const int64_t ahead = (kTilesAhead + at_a_time - 1) / at_a_time;
  context.kernels->begin_scores();
  for (int first = 0; first < shape_.num_sets; first += at_a_time) {
    for (int64_t tile = first_tile; tile <= last_tile; ++tile) {
      const int64_t next = tile + ahead <= last_tile ? tile + ahead : tile;
      for (int set = first; set < first + at_a_time; ++set) {
        ScoreTile(context, rows, set, tile, next);
      }
    }
  }
  context.kernels->end_scores();
}

void ChunkSelector::TakeLast(const Rows& rows) {
  for (size_t list = 0; list < counts_.size(); ++list) {
    const int64_t end = rows.ends[RowOf(list)];
    const int64_t first = std::max<int64_t>(1, end - static_cast<int64_t>(capacity_));
    for (int64_t chunk = first; chunk < end; ++chunk) {
      best_[list * capacity_ + counts_[list]++] = {0, chunk};
    }
  }
}

void ChunkSelector::TakeRandom(const Rows& rows) {
  for (size_t list = 0; list < counts_.size(); ++list) {
    const int head = rows.first_head + HeadOf(list);
    const int row = RowOf(list);
    for (int64_t chunk = 1; chunk < rows.ends[row]; ++chunk) {
      Offer(list, RandomScore(rows.layer, head, rows.first_position + row, chunk), chunk);
    }
  }
}

void ChunkSelector::Run(const CpuAttentionContext& context, const Rows& rows) {
  const ChunkSelection& selection = context.plan().selection;
  capacity_ = selection.num_free_picks;
  layout_ = SummaryLayoutOf(selection, context.geometry().group_size());
  shape_ = ShapeOf(layout_, rows);
  const auto num_lists = static_cast<size_t>(shape_.num_sets) * shape_.lists();
  best_.resize(num_lists * capacity_ + 1);
  picks_.resize(num_lists * capacity_ + 1);
  counts_.assign(num_lists, 0);
  switch (selection.order) {
    case ChunkSelection::Order::kBest:
      MakeTerms(context, rows);
      Scan(context, rows);
      break;
    case ChunkSelection::Order::kLast:
      TakeLast(rows);
      break;
    case ChunkSelection::Order::kRandom:
      TakeRandom(rows);
      break;
  }
  for (size_t list = 0; list < num_lists; ++list) {
    int64_t* picks = &picks_[list * capacity_];
    for (int i = 0; i < counts_[list]; ++i) picks[i] = best_[list * capacity_ + i].chunk;
    std::sort(picks, picks + counts_[list]);
  }
}

}  // namespace folio
