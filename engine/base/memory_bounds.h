#pragma once

#include <cstdint>
#include <string>

namespace folio {

struct MemoryBound {
  int64_t bytes = 0;
  std::string what;  // "cgroup /a/b (memory.max)"
};

// What this process may take.
struct MemoryBounds {
  // Ever: the machine's memory, the limit of a cgroup, or what a limit on address space or data
  // (RLIMIT_AS, RLIMIT_DATA) leaves beside what the process has of it.
  MemoryBound limit;
  // Beside what is in use now, by others too. The page cache does not count as in use: the kernel
  // gives it up first.
  MemoryBound available;
};

// Reads /proc and /sys/fs/cgroup below `root`: of cgroups v1 and v2 every level from the process's
// own up to the root, as any of them may have the tightest limit.
MemoryBounds ReadMemoryBounds(const std::string& root = "");

}  // namespace folio
