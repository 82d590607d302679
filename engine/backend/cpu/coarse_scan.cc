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

// A number that at least `count` of values [n] are above, close to the largest such one. The
// first of them is minus infinity, and so is what lies behind them up to a multiple of kTile.
float BoundOfBest(const cpu::Kernels& kernels, const float* values, int64_t n, size_t count) {
  constexpr int kHalvings = 12;
  const int64_t padded = (n + kTile - 1) / kTile * kTile;
  float low = *std::min_element(values + 1, values + n);
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
  args.magnitudes = tiles.magnitude;
  args.next = next.tiles;
  args.next_scales = next.scales;
  args.next_magnitudes = next.magnitude;
  args.num_tiles = layout_.tiles_per_frame;
  args.dim = g.padded_dim;
  args.num_rows = static_cast<int>(counts_.size());
  args.q = plain_queries_.data();
  args.row_floats = bound_floats_;
  args.least = &least_[tile];
  args.most = &most_[tile];
  context.kernels->score_coarsely(args);
}

void ChunkSelector::TakeTilesWithPicks(const cpu::Kernels& kernels, int set, int64_t num_tiles) {
  with_picks_.assign(num_tiles, 0);
  for (int list = set * shape_.lists(); list < (set + 1) * shape_.lists(); ++list) {
    const float* const most = &most_[list * bound_floats_];
    const float bound = BoundOfBest(kernels, &least_[list * bound_floats_], num_tiles, capacity_);
    for (int64_t tile = 0; tile < num_tiles; ++tile) with_picks_[tile] |= most[tile] >= bound;
  }
  tiles_.clear();
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    if (with_picks_[tile] != 0) tiles_.push_back(tile);
  }
}

void ChunkSelector::ScanCoarsely(const CpuAttentionContext& context, const Rows& rows,
                                 int64_t num_tiles) {
  const int64_t per_frame = layout_.tiles_per_frame;
  bound_floats_ = (num_tiles + kTile - 1) / kTile * kTile;
  least_.assign(counts_.size() * bound_floats_, -kInfinity);
  most_.resize(counts_.size() * bound_floats_);
  for (int64_t tile = 0; tile < num_tiles; tile += per_frame) {
    const int64_t next = std::min(tile + kFramesAhead * per_frame, num_tiles - per_frame);
    BoundTiles(context, rows.layer, tile, next);
  }
  // Chunk 0 is no candidate, and may be the best of its tile.
  for (size_t list = 0; list < counts_.size(); ++list) least_[list * bound_floats_] = -kInfinity;
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
