#pragma once

#include <span>

#include "engine/backend/cpu/attention_context.h"
#include "engine/base/worker_pool.h"

namespace folio {

// Writes keys and values into pages (layout: kv_types.h), keys in the form of the plan; sinks in
// the form that their stage reads, pinned ones un-rotated. A page is zeroed when its first token is
// written, so that lanes without a token hold finite numbers; one that the step completes is sealed
// too, if pages are. One context per slice of the step.
//   qkv [num_rows][(num_heads + 2 num_kv_heads) * head_dim]
void WriteKv(std::span<const CpuAttentionContext> contexts, WorkerPool* pool, int layer,
             const float* qkv);

}  // namespace folio
