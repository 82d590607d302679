#include "engine/attention/slice_rotations.h"

#include <algorithm>

#include "engine/attention/rope.h"

namespace folio {

const Rotary& QueryRotary(const SequenceSlice& slice, const Rotary& checkpoint, int head_dim,
                          Rotary* dynamic) {
  const AttentionPlan& plan = *slice.plan;
  const bool prompt = plan.IsPromptRow(slice.first_position);
  if (plan.dynamic_base) {
    const int64_t length = prompt && plan.prompt_tokens != kUnbounded
                               ? plan.prompt_tokens
                               : slice.first_position + slice.num_rows;
    *dynamic = DynamicRotary(*plan.dynamic_base, head_dim, length);
    return *dynamic;
  }
  if (!prompt && plan.decode_rotary != nullptr) return *plan.decode_rotary;
  return plan.rotary != nullptr ? *plan.rotary : checkpoint;
}

const Rotary& SummaryRotary(const SequenceSlice& slice, const Rotary& queries) {
  return slice.plan->decode_rotary != nullptr ? *slice.plan->decode_rotary : queries;
}

int64_t RotationReach(const SequenceSlice& slice, CocaQuery coca_query) {
  const int64_t last = slice.first_position + slice.num_rows - 1;
  // Slack queries are turned back by the position of every page.
  if (coca_query == CocaQuery::kRaw) return last;
  // Summaries turn a chunk's queries and keys against each other.
  int64_t reach = slice.plan->selection.chunk_tokens;
  for (const AttentionStage& stage : slice.plan->stages) {
    reach = std::max(reach, ReachOf(stage, slice.plan->selection, last));
  }
  return reach;
}

int64_t NumRotationOffsets(const AttentionPlan& plan, int page_tokens) {
  return std::max(page_tokens, plan.selection.chunk_tokens);
}

}  // namespace folio
