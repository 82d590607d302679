#include "engine/backend/cpu/chunk_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "engine/base/splitmix.h"

namespace folio {

using cpu::kQueryRows;
using cpu::kScoreRows;

namespace {

// That many tiles are on their way: those of a head lie far apart, and one is read faster than
// memory answers.
constexpr int64_t kTilesAhead = 4;

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

// All rows of one head against the chunks of one tile.
void ChunkSelector::ScoreTile(const CpuAttentionContext& context, const Rows& rows, int head,
                              int64_t tile, int64_t next_tile) {
  const SequenceSlice& slice = *context.slice;
  const int num_rows = static_cast<int>(rows.ends.size());
  cpu::ScoreChunksArgs args;
  args.dtype = context.geometry().dtype;
  args.dim = context.geometry().padded_dim;
  for (int first = 0; first < num_rows; first += kScoreRows) {
    args.num_rows = std::min(kScoreRows, num_rows - first);
    if (rows.ends[first + args.num_rows - 1] - 1 < tile * kTile) continue;
    if (terms_of_head_ > 1) {
      ScoreTileByTerms(context, rows, head, tile, first, args.num_rows);
      continue;
    }
    const Term& term = terms_[head];
    args.tile = context.SummaryTile(slice.summaries[tile], rows.layer, term.head);
    args.next = first == 0 ? context.SummaryTile(slice.summaries[next_tile], rows.layer, term.head)
                           : args.tile;
    args.q = PackedQueries(context, term, first);
    for (int r = 0; r < args.num_rows; ++r) {
      args.thresholds[r] = Threshold(ListOf(head, first + r));
    }
    context.kernels->score_chunks(&args);
    for (int r = 0; r < args.num_rows; ++r) {
      // Ascending: the threshold only rises, and equal scores keep the smaller index.
      for (uint32_t mask = args.above[r]; mask != 0; mask &= mask - 1) {
        const int lane = std::countr_zero(mask);
        const int64_t chunk = tile * kTile + lane;
        if (chunk < 1 || chunk >= rows.ends[first + r]) continue;
        Offer(ListOf(head, first + r), args.scores[r * kTile + lane], chunk);
      }
    }
  }
}

void ChunkSelector::ScoreTileByTerms(const CpuAttentionContext& context, const Rows& rows, int head,
                                     int64_t tile, int first_row, int num_rows) {
  const SequenceSlice& slice = *context.slice;
  const int frames = FramesPerSummaryTile(slice.plan->selection);
  std::array<float, kScoreRows* kTile> sums = {};
  for (int n = 0; n < terms_of_head_; ++n) {
    const Term& term = terms_[head * terms_of_head_ + n];
    cpu::ScoreChunksArgs args;
    args.dtype = context.geometry().dtype;
    args.dim = context.geometry().padded_dim;
    args.tile =
        context.SummaryTile(slice.summaries[tile * frames + term.frame], rows.layer, term.head);
    args.next = args.tile;
    args.num_rows = num_rows;
    args.q = PackedQueries(context, term, first_row);
    args.thresholds.fill(0);
    context.kernels->score_chunks(&args);
    for (int at = 0; at < num_rows * kTile; ++at) sums[at] += args.scores[at];
  }
  const float heads = rows.together ? static_cast<float>(rows.num_heads) : 1.0f;
  for (int r = 0; r < num_rows; ++r) {
    for (int lane = 0; lane < kTile; ++lane) {
      const int64_t chunk = tile * kTile + lane;
      if (chunk < 1 || chunk >= rows.ends[first_row + r]) continue;
      Offer(ListOf(head, first_row + r), sums[r * kTile + lane] / heads, chunk);
    }
  }
}

const std::byte* ChunkSelector::PackedQueries(const CpuAttentionContext& context, const Term& term,
                                              int first_row) const {
  const KvGeometry& g = context.geometry();
  return packed_ + term.queries +
         context.kernels->chunk_query_bytes(g.dtype, first_row, g.padded_dim);
}

void ChunkSelector::AddTerm(const CpuAttentionContext& context, const float* queries, int head,
                            int frame) {
  const KvGeometry& g = context.geometry();
  const int64_t begin = std::ssize(terms_) * term_bytes_;
  context.kernels->pack_chunk_queries(g.dtype, queries, static_cast<int>(num_rows_), g.padded_dim,
                                      packed_ + begin);
  terms_.push_back({begin, head, frame});
}

void ChunkSelector::MakeTerms(const CpuAttentionContext& context, const Rows& rows) {
  const KvGeometry& g = context.geometry();
  terms_.clear();
  const bool extremes = context.plan().selection.scorer == ChunkSelection::Scorer::kQuest;
  terms_of_head_ = (extremes ? 2 : 1) * (rows.together ? rows.num_heads : 1);
  const int64_t bytes =
      context.kernels->chunk_query_bytes(g.dtype, static_cast<int>(num_rows_), g.padded_dim);
  term_bytes_ = (bytes + 63) / 64 * 64;
  packed_ = scratch_.Get<std::byte>((extremes ? 2 : 1) * rows.num_heads * term_bytes_);
  const int64_t size = static_cast<int64_t>(num_rows_) * g.padded_dim;
  positive_.resize(extremes ? size : 0);
  negative_.resize(extremes ? size : 0);
  for (int h = 0; h < rows.num_heads; ++h) {
    const float* queries = rows.queries + h * rows.head_stride;
    if (!extremes) {
      AddTerm(context, queries, rows.first_head + h, 0);
      continue;
    }
    // sum_x max(q_x max_x, q_x min_x) = <max(q, 0), max> + <min(q, 0), min>
    for (int64_t x = 0; x < size; ++x) {
      positive_[x] = std::max(queries[x], 0.0f);
      negative_[x] = std::min(queries[x], 0.0f);
    }
    AddTerm(context, positive_.data(), rows.first_head + h, 0);
    AddTerm(context, negative_.data(), rows.first_head + h, 1);
  }
}

// Tiles outside, rows inside: a tile is read once for all rows. Few rows leave room in the cache
// for the queries of all heads, whose tiles lie side by side: they are read in one stream.
void ChunkSelector::Scan(const CpuAttentionContext& context, const Rows& rows) {
  if (rows.ends.back() < 2) return;
  const int64_t last_tile = (rows.ends.back() - 1) / kTile;
  const int num_heads = rows.together ? 1 : rows.num_heads;
  const int at_a_time = std::ssize(rows.ends) <= kQueryRows ? num_heads : 1;
  const int64_t ahead = (kTilesAhead + at_a_time - 1) / at_a_time;
  context.kernels->begin_scores();
  for (int first = 0; first < num_heads; first += at_a_time) {
    for (int64_t tile = 0; tile <= last_tile; ++tile) {
      const int64_t next = tile + ahead <= last_tile ? tile + ahead : tile;
      for (int head = first; head < first + at_a_time; ++head) {
        ScoreTile(context, rows, head, tile, next);
      }
    }
  }
  context.kernels->end_scores();
}

void ChunkSelector::TakeLast(const Rows& rows) {
  for (size_t list = 0; list < counts_.size(); ++list) {
    const int64_t end = rows.ends[list % num_rows_];
    const int64_t first = std::max<int64_t>(1, end - static_cast<int64_t>(capacity_));
    for (int64_t chunk = first; chunk < end; ++chunk) {
      best_[list * capacity_ + counts_[list]++] = {0, chunk};
    }
  }
}

void ChunkSelector::TakeRandom(const Rows& rows) {
  for (size_t list = 0; list < counts_.size(); ++list) {
    const int head = rows.first_head + static_cast<int>(list / num_rows_);
    const auto row = static_cast<int64_t>(list % num_rows_);
    for (int64_t chunk = 1; chunk < rows.ends[row]; ++chunk) {
      Offer(list, RandomScore(rows.layer, head, rows.first_position + row, chunk), chunk);
    }
  }
}

void ChunkSelector::Run(const CpuAttentionContext& context, const Rows& rows) {
  num_rows_ = rows.ends.size();
  capacity_ = context.plan().selection.num_free_picks;
  const size_t num_lists = (rows.together ? 1 : rows.num_heads) * num_rows_;
  best_.resize(num_lists * capacity_ + 1);
  picks_.resize(num_lists * capacity_ + 1);
  counts_.assign(num_lists, 0);
  switch (context.plan().selection.order) {
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
