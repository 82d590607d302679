#pragma once

#include <functional>

#include "engine/types/request.h"

namespace folio::server {

// The time as streams see it: the steady clock in production, set by hand in tests. Thread-safe.
using Clock = std::function<SteadyTime()>;

}  // namespace folio::server
