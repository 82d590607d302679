#include "engine/base/memory_info.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace folio {
namespace {

// The value in bytes of a "Name:  123 kB" line, or -1.
int64_t ProcFileBytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, name.size(), name) == 0) {
      return std::stoll(line.substr(line.find(':') + 1)) * 1024;
    }
  }
  return -1;
}

}  // namespace

int64_t ResidentBytes() { return ProcFileBytes("/proc/self/status", "VmRSS"); }

int64_t PeakResidentBytes() { return ProcFileBytes("/proc/self/status", "VmHWM"); }

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  if (file >> quota >> period && period > 0) {
    cpus = std::min(cpus, static_cast<int>((quota + period - 1) / period));
  }
  return std::max(1, cpus);
}

}  // namespace folio
