#pragma once

#include <cstdint>

namespace folio {

// Bytes that this process may still allocate: the smaller of the system's available memory and what
// the cgroup (v2) limit leaves.
int64_t AvailableMemoryBytes();

// Resident set of this process, now and at its highest.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

// CPUs this process may use: the affinity mask, capped by the cgroup (v2) quota, at least 1.
int UsableCpus();

}  // namespace folio
