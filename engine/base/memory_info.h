#pragma once

#include <cstdint>

namespace folio {

// Resident set of this process, now and at its highest.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

// CPUs this process may use: the affinity mask, capped by the cgroup (v2) quota, at least 1.
int UsableCpus();

}  // namespace folio
