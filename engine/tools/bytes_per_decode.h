#pragma once

#include <cstdint>

#include "engine/types/attention_plan.h"
#include "engine/types/kv_types.h"

namespace folio {

// Bytes of the cache that one decoded token at `position` reads in all layers: keys and values that
// it sees, and summaries that it is scored against. Where the heads of a group choose chunks apart,
// as many different ones as choices that have nothing to do with each other are expected to hold,
// which is so on random keys. Without keys that are only scored to choose single tokens.
double BytesPerDecode(const AttentionPlan& plan, const KvGeometry& geometry, int64_t position);

}  // namespace folio
