#pragma once

#include <cstdint>

namespace folio {

// Resident set of this process, now and at its highest.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

}  // namespace folio
