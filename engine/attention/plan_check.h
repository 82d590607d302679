#pragma once

#include "absl/status/status.h"
#include "engine/types/attention_plan.h"

namespace folio {

// Whether backends can execute a plan over pages of page_tokens tokens: no more stages than they
// have room for, each with what it reads. Errors: INTERNAL, because parameters were checked before
// and the strategy is at fault.
absl::Status CheckPlan(const AttentionPlan& plan, int page_tokens);

}  // namespace folio
