#pragma once

#include <string>

#include "engine/types/slow_step.h"
#include "server/call_registry.h"

namespace folio::server {

// What was in a slow step, in one line, by the ids of calls as clients and operators have them.
std::string DescribeSlowStep(const SlowStep& step, CallRegistry* calls);

}  // namespace folio::server
