#include "engine/tools/bytes_per_decode.h"

#include <algorithm>
#include <cmath>

#include "engine/attention/visible_keys.h"
#include "engine/backend/cpu/coarse_summary.h"
#include "engine/types/plan_reading.h"

namespace folio {
namespace {

// Of `candidates` chunks, or tiles, those that are among the `picks` of at least one of `heads`
// heads.
double DistinctChunks(int64_t candidates, int64_t picks, int heads) {
  if (candidates == 0) return 0;
  const double left_out = 1.0 - static_cast<double>(picks) / static_cast<double>(candidates);
  return static_cast<double>(candidates) * (1.0 - std::pow(left_out, heads));
}

// Heads whose scores decide together.
int HeadsThatShare(const ChunkSelection& selection, const KvGeometry& g) {
  if (selection.share == ChunkSelection::Share::kLayer) return g.num_heads;
  return selection.share == ChunkSelection::Share::kGroup ? g.group_size() : 1;
}

// Heads of a group that choose without the others.
int HeadsThatChoose(const ChunkSelection& selection, const KvGeometry& g) {
  const bool together =
      HeadsThatShare(selection, g) > 1 || selection.order == ChunkSelection::Order::kLast;
  return together ? 1 : g.group_size();
}

// Of what the heads with the same summaries read in one layer: where they read 8-bit copies, these
// and at least the tiles that hold a pick.
double TileBytes(const ChunkSelection& selection, const KvGeometry& g, const SummaryLayout& layout,
                 int64_t num_chunks, int64_t candidates_end) {
  const auto tile_bytes = static_cast<double>(g.summary_tile_bytes());
  const double num_tiles = static_cast<double>(num_chunks) / kTile;
  const int shared = HeadsThatShare(selection, g);
  const int lists = shared > 1 ? 1 : layout.tiles_per_frame;
  const bool one_product = layout.vectors == 1 && shared <= layout.tiles_per_frame;
  const int64_t coarse_tiles =
      one_product
          ? NumCoarseTiles(g, layout, candidates_end, int64_t{selection.num_free_picks} * lists)
          : 0;
  if (coarse_tiles == 0) return num_tiles * layout.vectors * tile_bytes;
  const auto scale_bytes = static_cast<double>(sizeof(float));
  return static_cast<double>(coarse_tiles) *
             (static_cast<double>(g.coarse_tile_bytes()) + scale_bytes) +
         (num_tiles - static_cast<double>(coarse_tiles) +
          DistinctChunks(coarse_tiles, selection.num_free_picks, lists)) *
             tile_bytes;
}

double SummaryBytes(const ChunkSelection& selection, const KvGeometry& g, int64_t position,
                    int64_t candidates_end) {
  if (selection.order != ChunkSelection::Order::kBest) return 0;
  const SummaryLayout layout = SummaryLayoutOf(selection, g.group_size());
  const int64_t num_chunks = position / selection.chunk_tokens;
  const bool in_one_layer = selection.share == ChunkSelection::Share::kLayers;
  return TileBytes(selection, g, layout, num_chunks, candidates_end) * g.num_heads /
         layout.tiles_per_frame * (in_one_layer ? 1 : g.num_layers);
}

}  // namespace

double BytesPerDecode(const AttentionPlan& plan, const KvGeometry& g, int64_t position) {
  const double per_token = static_cast<double>(g.sealed_frame_bytes()) / g.page_tokens;
  const double seen = per_token * static_cast<double>(NumVisibleKeys(plan, position));
  const ChunkSelection& selection = plan.selection;
  if (!selection.enabled()) return seen;
  const ChunkView view = ViewChunks(selection, position, plan.IsPromptRow(position));
  const int64_t candidates = view.num_candidates();
  const int64_t picks = std::min<int64_t>(candidates, selection.num_free_picks);
  const double distinct = DistinctChunks(candidates, picks, HeadsThatChoose(selection, g));
  const double of_other_heads =
      per_token * (distinct - static_cast<double>(picks)) * selection.chunk_tokens;
  return seen + of_other_heads + SummaryBytes(selection, g, position, view.candidates_end);
}

}  // namespace folio
