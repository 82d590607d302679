#include "engine/tools/bytes_per_decode.h"

#include <algorithm>
#include <cmath>

#include "engine/attention/visible_keys.h"
#include "engine/types/plan_reading.h"

namespace folio {
namespace {

// Of `candidates` chunks those that are among the `picks` of at least one of `heads` heads.
double DistinctChunks(int64_t candidates, int64_t picks, int heads) {
  if (candidates == 0) return 0;
  const double left_out = 1.0 - static_cast<double>(picks) / static_cast<double>(candidates);
  return static_cast<double>(candidates) * (1.0 - std::pow(left_out, heads));
}

// Heads of a group that choose without the others.
int HeadsThatChoose(const ChunkSelection& selection, int group_size) {
  using Share = ChunkSelection::Share;
  const bool together = selection.share == Share::kGroup || selection.share == Share::kLayer ||
                        selection.order == ChunkSelection::Order::kLast;
  return together ? 1 : group_size;
}

double SummaryBytes(const ChunkSelection& selection, const KvGeometry& g, int64_t position) {
  if (selection.order != ChunkSelection::Order::kBest) return 0;
  const SummaryLayout layout = SummaryLayoutOf(selection, g.group_size());
  const int64_t chunks = position / selection.chunk_tokens;
  const bool in_one_layer = selection.share == ChunkSelection::Share::kLayers;
  return static_cast<double>(g.summary_frame_bytes() * layout.vectors * chunks) /
         static_cast<double>(layout.ChunksPerFrame() * (in_one_layer ? g.num_layers : 1));
}

}  // namespace

double BytesPerDecode(const AttentionPlan& plan, const KvGeometry& g, int64_t position) {
  const bool wide = plan.retention.window_tokens != kUnbounded;
  const int64_t frame_bytes = wide ? g.frame_bytes() : g.sealed_frame_bytes();
  const double per_token = static_cast<double>(frame_bytes) / g.page_tokens;
  const double seen = per_token * static_cast<double>(NumVisibleKeys(plan, position));
  const ChunkSelection& selection = plan.selection;
  if (!selection.enabled()) return seen;
  const int64_t candidates =
      ViewChunks(selection, position, plan.IsPromptRow(position)).num_candidates();
  const int64_t picks = std::min<int64_t>(candidates, selection.num_free_picks);
  const double distinct =
      DistinctChunks(candidates, picks, HeadsThatChoose(selection, g.group_size()));
  const double of_other_heads =
      per_token * (distinct - static_cast<double>(picks)) * selection.chunk_tokens;
  return seen + of_other_heads + SummaryBytes(selection, g, position);
}

}  // namespace folio
