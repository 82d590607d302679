#pragma once

#include <string>

#include "absl/status/status.h"

namespace folio {

// RESOURCE_EXHAUSTED for want of what something else holds and gives back by itself: a later try
// may work.
absl::Status ShortForNow(const std::string& message);
bool IsShortForNow(const absl::Status& status);

}  // namespace folio
