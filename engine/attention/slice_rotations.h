#pragma once

#include <cstdint>

#include "engine/types/attention_plan.h"
#include "engine/types/position.h"

namespace folio {

// Which rotations a slice of a step needs, whatever a backend keeps them in.

// The table that the slice's queries and keys are turned by: of the plan, or of the checkpoint.
// `dynamic` holds it where it follows the length of the text.
const Rotary& QueryRotary(const SequenceSlice& slice, const Rotary& checkpoint, int head_dim,
                          Rotary* dynamic);

// The table of its chunk summaries, which the answer is read with too; `queries` is the
// slice's own.
const Rotary& SummaryRotary(const SequenceSlice& slice, const Rotary& queries);

// The largest distance in tokens by which a query of the slice is turned for the start of a page;
// rotations by pinned distances (AttentionStage::distance_limit) come beside.
int64_t RotationReach(const SequenceSlice& slice, CocaQuery coca_query);

// Offsets 0 .. result - 1 by which queries and keys are turned inside a page or chunk.
int64_t NumRotationOffsets(const AttentionPlan& plan, int page_tokens);

}  // namespace folio
