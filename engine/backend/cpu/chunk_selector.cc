#include "engine/backend/cpu/chunk_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "engine/base/splitmix.h"

namespace folio {

using cpu::kQueryRows;

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

void ChunkSelector::Offer(int row, float score, int64_t chunk) {
  Pick* best = &best_[row * capacity_];
  int& count = counts_[row];
  // Chunks come in ascending order, so an equal score never displaces an earlier one.
  if (count == static_cast<int>(capacity_)) {
    if (!(score > best[count - 1].score)) return;
    --count;
  }
  int at = count++;
  for (; at > 0 && best[at - 1].score < score; --at) best[at] = best[at - 1];
  best[at] = {score, chunk};
}

float ChunkSelector::Threshold(int row) const {
  return counts_[row] == static_cast<int>(capacity_) ? best_[(row + 1) * capacity_ - 1].score
                                                     : -std::numeric_limits<float>::infinity();
}

// Up to kQueryRows rows against the chunks of one tile, where a score is one product.
void ChunkSelector::ScoreTile(const cpu::ScoreChunksArgs& args, int first_row, int64_t tile,
                              const cpu::Kernels& kernels, std::span<const int64_t> ends) {
  cpu::ScoreChunksArgs part = args;
  for (int r = 0; r < args.num_rows; ++r) part.thresholds[r] = Threshold(first_row + r);
  kernels.score_chunks(&part);
  for (int r = 0; r < args.num_rows; ++r) {
    const int row = first_row + r;
    // Ascending: the threshold only rises, and equal scores keep the smaller index.
    for (uint32_t mask = part.above[r]; mask != 0; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      const int64_t chunk = tile * kTile + lane;
      if (chunk >= 1 && chunk < ends[row]) Offer(row, part.scores[r * kTile + lane], chunk);
    }
  }
}

void ChunkSelector::ScoreTileByTerms(const CpuAttentionContext& context, const Rows& rows,
                                     int64_t tile, int first_row, int num_rows) {
  const SequenceSlice& slice = *context.slice;
  const int frames = FramesPerSummaryTile(slice.plan->selection);
  std::array<float, kQueryRows* kTile> sums = {};
  for (const Term& term : terms_) {
    cpu::ScoreChunksArgs args;
    args.dtype = context.geometry().dtype;
    args.dim = context.geometry().padded_dim;
    args.tile =
        context.SummaryTile(slice.summaries[tile * frames + term.frame], rows.layer, term.head);
    args.next = args.tile;
    args.num_rows = num_rows;
    args.q = term.queries + int64_t{first_row} * args.dim;
    args.thresholds.fill(0);
    context.kernels->score_chunks(&args);
    for (int at = 0; at < num_rows * kTile; ++at) sums[at] += args.scores[at];
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int lane = 0; lane < kTile; ++lane) {
      const int64_t chunk = tile * kTile + lane;
      if (chunk < 1 || chunk >= rows.ends[first_row + r]) continue;
      Offer(first_row + r, sums[r * kTile + lane] / static_cast<float>(rows.num_heads), chunk);
    }
  }
}

void ChunkSelector::MakeTerms(const CpuAttentionContext& context, const Rows& rows) {
  terms_.clear();
  const bool extremes = context.plan().selection.scorer == ChunkSelection::Scorer::kQuest;
  const int64_t size = static_cast<int64_t>(rows.ends.size()) * context.geometry().padded_dim;
  if (extremes) {
    positive_.resize(rows.num_heads * size);
    negative_.resize(rows.num_heads * size);
  }
  for (int h = 0; h < rows.num_heads; ++h) {
    const float* queries = rows.queries + h * rows.head_stride;
    if (!extremes) {
      terms_.push_back({queries, rows.first_head + h, 0});
      continue;
    }
    // sum_x max(q_x max_x, q_x min_x) = <max(q, 0), max> + <min(q, 0), min>
    for (int64_t x = 0; x < size; ++x) {
      positive_[h * size + x] = std::max(queries[x], 0.0f);
      negative_[h * size + x] = std::min(queries[x], 0.0f);
    }
    terms_.push_back({&positive_[h * size], rows.first_head + h, 0});
    terms_.push_back({&negative_[h * size], rows.first_head + h, 1});
  }
}

// Tiles outside, rows inside: a tile is read once for all rows.
void ChunkSelector::Scan(const CpuAttentionContext& context, const Rows& rows) {
  const SequenceSlice& slice = *context.slice;
  const int num_rows = static_cast<int>(rows.ends.size());
  if (rows.ends.back() < 2) return;
  const int64_t last_tile = (rows.ends.back() - 1) / kTile;
  cpu::ScoreChunksArgs args;
  args.dtype = context.geometry().dtype;
  args.dim = context.geometry().padded_dim;
  const auto tile_at = [&](int64_t tile) {
    return context.SummaryTile(slice.summaries[tile], rows.layer, rows.first_head);
  };
  for (int64_t tile = 0; tile <= last_tile; ++tile) {
    for (int first = 0; first < num_rows; first += kQueryRows) {
      args.num_rows = std::min(kQueryRows, num_rows - first);
      if (rows.ends[first + args.num_rows - 1] - 1 < tile * kTile) continue;
      if (terms_.size() > 1) {
        ScoreTileByTerms(context, rows, tile, first, args.num_rows);
        continue;
      }
      args.tile = tile_at(tile);
      const bool more = first == 0 && tile + kTilesAhead <= last_tile;
      args.next = more ? tile_at(tile + kTilesAhead) : args.tile;
      args.q = &terms_[0].queries[int64_t{first} * args.dim];
      ScoreTile(args, first, tile, *context.kernels, rows.ends);
    }
  }
}

void ChunkSelector::TakeLast(const Rows& rows) {
  for (size_t row = 0; row < rows.ends.size(); ++row) {
    const int64_t first = std::max<int64_t>(1, rows.ends[row] - static_cast<int64_t>(capacity_));
    for (int64_t chunk = first; chunk < rows.ends[row]; ++chunk) {
      best_[row * capacity_ + counts_[row]++] = {0, chunk};
    }
  }
}

void ChunkSelector::TakeRandom(const Rows& rows) {
  for (size_t row = 0; row < rows.ends.size(); ++row) {
    const int64_t position = rows.first_position + static_cast<int64_t>(row);
    for (int64_t chunk = 1; chunk < rows.ends[row]; ++chunk) {
      Offer(static_cast<int>(row), RandomScore(rows.layer, rows.first_head, position, chunk),
            chunk);
    }
  }
}

void ChunkSelector::Run(const CpuAttentionContext& context, const Rows& rows) {
  const size_t num_rows = rows.ends.size();
  capacity_ = context.plan().selection.num_free_picks;
  best_.resize(num_rows * capacity_ + 1);
  picks_.resize(num_rows * capacity_ + 1);
  counts_.assign(num_rows, 0);
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
  for (size_t row = 0; row < num_rows; ++row) {
    int64_t* picks = &picks_[row * capacity_];
    for (int i = 0; i < counts_[row]; ++i) picks[i] = best_[row * capacity_ + i].chunk;
    std::sort(picks, picks + counts_[row]);
  }
}

}  // namespace folio
