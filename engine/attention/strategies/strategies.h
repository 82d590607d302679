#pragma once

#include "engine/attention/attention_strategy.h"

namespace folio {

// One function per strategy file; strategy_registry.cc lists them.
const AttentionStrategy& Full();
const AttentionStrategy& LmInfinite();
const AttentionStrategy& LongHeads();

}  // namespace folio
