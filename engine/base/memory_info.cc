#include "engine/base/memory_info.h"

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

}  // namespace folio
