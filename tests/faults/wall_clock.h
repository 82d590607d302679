#pragma once

#include <chrono>

namespace folio::testing {

// Sets the calendar of this process forward or back; steady clocks go on. 0: to that of the system.
void SetWallClock(std::chrono::seconds ahead);

}  // namespace folio::testing
