#pragma once

#include "engine/attention/attention_strategy.h"

namespace folio {

// One function per strategy file; strategy_registry.cc lists them.
const AttentionStrategy& Full();
const AttentionStrategy& Truncation();
const AttentionStrategy& SlidingWindow();
const AttentionStrategy& Streaming();
const AttentionStrategy& LmInfinite();
const AttentionStrategy& LongHeads();
const AttentionStrategy& RectifiedRope();

}  // namespace folio
