#pragma once

#include <string>

namespace folio {

// CPUs that this process may use, at least 1: those of its affinity mask, or as many as the
// tightest CPU quota of its control groups (v1 and v2, any level) keeps busy, rounded up. Reads
// /proc and /sys/fs/cgroup below `root`.
int UsableCpus(const std::string& root = "");

}  // namespace folio
