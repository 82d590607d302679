#include "engine/base/memory_bounds.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "engine/base/cgroups.h"

namespace folio {
namespace {

// The number behind `name` at the start of a line of a file like /proc/meminfo or memory.stat.
std::optional<int64_t> Field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, name.size(), name) != 0) continue;
    std::istringstream rest(line.substr(name.size()));
    int64_t value = 0;
    if (rest >> value) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

void Tighten(int64_t bytes, const std::string& what, MemoryBound* bound) {
  if (bytes < bound->bytes) *bound = {std::max<int64_t>(0, bytes), what};
}

// Names of one version of cgroups.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // of memory.stat, the levels below included
};
constexpr CgroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file "};
constexpr CgroupFiles kV2 = {"memory.max", "memory.current", "inactive_file "};

void ReadLevel(const CgroupLevel& level, MemoryBounds* bounds) {
  const CgroupFiles& files = level.v2 ? kV2 : kV1;
  // "max" is no number.
  const std::optional<int64_t> limit = Field(level.dir + "/" + files.limit, "");
  if (!limit.has_value()) return;
  const std::string what = "cgroup " + level.name + " (" + files.limit + ")";
  Tighten(*limit, what, &bounds->limit);
  const int64_t usage = Field(level.dir + "/" + files.usage, "").value_or(0);
  const int64_t cache = Field(level.dir + "/memory.stat", files.inactive_file).value_or(0);
  Tighten(*limit - std::max<int64_t>(0, usage - cache), what, &bounds->available);
}

// The soft limit, which stands first; "unlimited" is no number.
void ReadResourceLimit(const std::string& root, const char* limit, const char* used,
                       const char* what, MemoryBounds* bounds) {
  const std::optional<int64_t> bytes = Field(root + "/proc/self/limits", limit);
  if (!bytes.has_value()) return;
  const int64_t left = *bytes - 1024 * Field(root + "/proc/self/status", used).value_or(0);
  Tighten(left, what, &bounds->limit);
  Tighten(left, what, &bounds->available);
}

}  // namespace

MemoryBounds ReadMemoryBounds(const std::string& root) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  MemoryBounds bounds{{kNone, ""}, {kNone, ""}};
  const std::string meminfo = root + "/proc/meminfo";
  const char* machine = "the machine's memory";
  Tighten(1024 * Field(meminfo, "MemTotal:").value_or(0), machine, &bounds.limit);
  Tighten(1024 * Field(meminfo, "MemAvailable:").value_or(0), machine, &bounds.available);
  for (const CgroupLevel& level : CgroupLevels(root, "memory")) ReadLevel(level, &bounds);
  ReadResourceLimit(root, "Max address space", "VmSize:", "RLIMIT_AS", &bounds);
  ReadResourceLimit(root, "Max data size", "VmData:", "RLIMIT_DATA", &bounds);
  return bounds;
}

}  // namespace folio
