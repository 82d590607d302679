// The part of ChunkSelector that leaves out tiles by the 8-bit copies of their summaries. A tile
// whose best chunk scores less than those of num_free_picks others do at least holds no pick. The
// chunks of all others are scored by their summaries, so that the choice is the same as without
// copies.
#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/backend/cpu/chunk_selector.h"
#include "engine/backend/cpu/coarse_summary.h"

namespace folio {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A number that at least `count` of values [n] are above, close to the largest such one. What lies
// behind them, up to a multiple of kTile, is minus infinity.
float BoundOfBest(const cpu::Kernels& kernels, const float* values, int64_t n, size_t count) {
  constexpr int kHalvings = 12;
  const int64_t padded = (n + kTile - 1) / kTile * kTile;
  float low = *std::min_element(values, values + n);
  float high = *std::max_element(values, values + n);
  float bound = -kInfinity;
  for (int i = 0; i < kHalvings; ++i) {
    const float middle = std::midpoint(low, high);
    if (kernels.count_above(values, padded, middle) >= static_cast<int64_t>(count)) {
      bound = low = middle;
    } else {
      high = middle;
    }
  }
  return bound;
}

}  // namespace

void ChunkSelector::MakeCoarseQueries(const CpuAttentionContext& context, int layer) {
  const KvGeometry& g = context.geometry();
  coarse_queries_.clear();
  for (int list = 0; list < std::ssize(counts_); ++list) {
    const Term& term = terms_[list / shape_.lists()];
    const SummaryLayout::Place place = layout_.PlaceOf(0, term.head, term.vector);
    std::byte* const frame = context.setup->summaries.Frame(context.slice->summaries[place.frame]);
    const CoarseChannels channels(g, frame, layer, place.head);
    coarse_queries_.push_back(
        MakeCoarseQuery(g, &plain_queries_[int64_t{list} * g.padded_dim], channels));
  }
}

// All lists are rows of one call: of heads that each have summaries of their own, or of those of
// a group that have them in common.
void ChunkSelector::BoundTiles(const CpuAttentionContext& context, int layer, int64_t tile,
                               int64_t next_tile) {
  const KvGeometry& g = context.geometry();
  const auto tiles_at = [&](int64_t n) {
    const SummaryLayout::Place place = layout_.PlaceOf(n, terms_[0].head, terms_[0].vector);
    std::byte* const frame = context.setup->summaries.Frame(context.slice->summaries[place.frame]);
    return CoarseTiles(g, frame, layer, place.head);
  };
  const CoarseTiles tiles = tiles_at(tile);
  const CoarseTiles next = tiles_at(next_tile);
  cpu::CoarseScoresArgs args;
  args.own_tiles = layout_.tiles_per_frame == 1;
  args.tiles = tiles.tiles;
  args.scales = tiles.scales;
  args.next = next.tiles;
  args.next_scales = next.scales;
  args.num_tiles = layout_.tiles_per_frame;
  args.dim = g.padded_dim;
  args.num_rows = static_cast<int>(coarse_queries_.size());
  args.queries = coarse_queries_.data();
  args.row_floats = bound_floats_;
  args.least = &least_[tile - layout_.tiles_per_frame];
  args.most = &most_[tile - layout_.tiles_per_frame];
  context.kernels->score_coarsely(args);
}

void ChunkSelector::TakeTilesWithPicks(const cpu::Kernels& kernels, int set, int64_t num_tiles) {
  const int64_t per_frame = layout_.tiles_per_frame;
  const int64_t num_bounded = num_tiles - per_frame;
  with_picks_.assign(num_bounded, 0);
  for (int list = set * shape_.lists(); list < (set + 1) * shape_.lists(); ++list) {
    const float* const most = &most_[list * bound_floats_];
    const float bound = BoundOfBest(kernels, &least_[list * bound_floats_], num_bounded, capacity_);
    for (int64_t n = 0; n < num_bounded; ++n) with_picks_[n] |= most[n] >= bound;
  }
  tiles_.resize(per_frame);
  std::iota(tiles_.begin(), tiles_.end(), 0);
  for (int64_t n = 0; n < num_bounded; ++n) {
    if (with_picks_[n] != 0) tiles_.push_back(per_frame + n);
  }
}

void ChunkSelector::ScanCoarsely(const CpuAttentionContext& context, const Rows& rows,
                                 int64_t num_tiles) {
  const int64_t per_frame = layout_.tiles_per_frame;
  bound_floats_ = (num_tiles - per_frame + kTile - 1) / kTile * kTile;
  least_.assign(counts_.size() * bound_floats_, -kInfinity);
  most_.resize(counts_.size() * bound_floats_);
  MakeCoarseQueries(context, rows.layer);
  for (int64_t tile = per_frame; tile < num_tiles; tile += per_frame) {
    const int64_t next = std::min(tile + kFramesAhead * per_frame, num_tiles - per_frame);
    BoundTiles(context, rows.layer, tile, next);
  }
  context.kernels->begin_scores();
  for (int set = 0; set < shape_.num_sets; ++set) {
    TakeTilesWithPicks(*context.kernels, set, num_tiles);
    for (size_t n = 0; n < tiles_.size(); ++n) {
      const int64_t next = tiles_[std::min(n + kTilesAhead, tiles_.size() - 1)];
      ScoreTile(context, rows, set, tiles_[n], next);
    }
  }
  context.kernels->end_scores();
}

}  // namespace folio
