#include "engine/backend/cuda/slice_ropes.h"

#include "engine/attention/slice_rotations.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

// What the first row of a tile may add to a distance.
constexpr int64_t kTileReach = 256;

}  // namespace

absl::StatusOr<SliceRopes::Ropes> SliceRopes::Get(const SequenceSlice& slice) {
  const KvGeometry& g = setup_.geometry;
  const AttentionPlan& plan = *slice.plan;
  const Rotary& queries = QueryRotary(slice, setup_.rotary, g.head_dim, &dynamic_);
  const Rotary& summaries = SummaryRotary(slice, queries);
  DeviceRope* rope = cache_.Get(queries);
  DeviceRope* summary = &summaries == &queries ? rope : cache_.Get(summaries);
  const int64_t reach = RotationReach(slice, setup_.coca_query) + kTileReach + 2 * g.page_tokens;
  const int64_t num_positions = NumRotationOffsets(plan, g.page_tokens);
  for (DeviceRope* table : {rope, summary}) {
    FOLIO_RETURN_IF_ERROR(table->Grow(num_positions, reach / g.page_tokens + 1));
    for (const AttentionStage& stage : plan.stages) {
      if (stage.distance == AttentionStage::Distance::kPinned) {
        FOLIO_RETURN_IF_ERROR(table->AddFixed(stage.distance_limit));
      }
    }
  }
  return Ropes{rope, summary};
}

}  // namespace folio::cuda
