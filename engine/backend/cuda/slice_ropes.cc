#include "engine/backend/cuda/slice_ropes.h"

#include <algorithm>

#include "engine/attention/rope.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

using Distance = AttentionStage::Distance;
using Keys = AttentionStage::Keys;

// What the first row of a tile may add to a distance.
constexpr int64_t kTileReach = 256;

}  // namespace

const Rotary& SliceRopes::RotaryOf(const SequenceSlice& slice) {
  const AttentionPlan& plan = *slice.plan;
  const bool prompt = plan.IsPromptRow(slice.first_position);
  if (plan.dynamic_base) {
    const int64_t length = prompt && plan.prompt_tokens != kUnbounded
                               ? plan.prompt_tokens
                               : slice.first_position + slice.num_rows;
    dynamic_ = DynamicRotary(*plan.dynamic_base, setup_.geometry.head_dim, length);
    return dynamic_;
  }
  if (!prompt && plan.decode_rotary != nullptr) return *plan.decode_rotary;
  return plan.rotary != nullptr ? *plan.rotary : setup_.rotary;
}

int64_t SliceRopes::ReachOf(const SequenceSlice& slice) const {
  const AttentionPlan& plan = *slice.plan;
  const int64_t last = slice.first_position + slice.num_rows - 1;
  if (setup_.coca_query == CocaQuery::kRaw) return last;
  int64_t reach = 0;
  for (const AttentionStage& stage : plan.stages) {
    int64_t stage_reach = 0;
    if (stage.keys == Keys::kChunks) {
      stage_reach = int64_t{plan.selection.num_free_picks + 3} * plan.selection.chunk_tokens;
    } else if (stage.distance == Distance::kClamped) {
      stage_reach = std::min(last, stage.distance_limit);
    } else if (stage.distance != Distance::kPinned) {
      stage_reach = std::min(last, stage.band_end);
    }
    reach = std::max(reach, stage_reach);
  }
  return reach;
}

absl::StatusOr<SliceRopes::Ropes> SliceRopes::Get(const SequenceSlice& slice) {
  const KvGeometry& g = setup_.geometry;
  const AttentionPlan& plan = *slice.plan;
  DeviceRope* rope = cache_.Get(RotaryOf(slice));
  DeviceRope* summary = plan.decode_rotary != nullptr ? cache_.Get(*plan.decode_rotary) : rope;
  const int64_t reach = ReachOf(slice) + kTileReach + 2 * g.page_tokens;
  const int64_t num_positions = std::max(g.page_tokens, plan.selection.chunk_tokens);
  for (DeviceRope* table : {rope, summary}) {
    FOLIO_RETURN_IF_ERROR(table->Grow(num_positions, reach / g.page_tokens + 1));
    for (const AttentionStage& stage : plan.stages) {
      if (stage.distance == Distance::kPinned) {
        FOLIO_RETURN_IF_ERROR(table->AddFixed(stage.distance_limit));
      }
    }
  }
  return Ropes{rope, summary};
}

}  // namespace folio::cuda
