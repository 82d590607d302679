#include "engine/base/memory_bounds.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

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

void ReadLevel(const std::string& dir, const std::string& level, const CgroupFiles& files,
               MemoryBounds* bounds) {
  // "max" is no number.
  const std::optional<int64_t> limit = Field(dir + "/" + files.limit, "");
  if (!limit.has_value()) return;
  const std::string what =
      "cgroup " + (level.empty() ? std::string("/") : level) + " (" + files.limit + ")";
  Tighten(*limit, what, &bounds->limit);
  const int64_t usage = Field(dir + "/" + files.usage, "").value_or(0);
  const int64_t cache = Field(dir + "/memory.stat", files.inactive_file).value_or(0);
  Tighten(*limit - std::max<int64_t>(0, usage - cache), what, &bounds->available);
}

// `path` is of /proc/self/cgroup. Levels that are not there are those outside of a container.
void ReadLevels(const std::string& mount, std::string path, const CgroupFiles& files,
                MemoryBounds* bounds) {
  if (path == "/" || path.find("/..") != std::string::npos) path.clear();
  while (!path.empty()) {
    ReadLevel(mount + path, path, files, bounds);
    path.resize(path.rfind('/'));
  }
  ReadLevel(mount, "", files, bounds);
}

// Lines of "number:controllers:path"; of v2 the number is 0 and there are no controllers.
void ReadCgroups(const std::string& root, MemoryBounds* bounds) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers == ",,") {
      ReadLevels(root + "/sys/fs/cgroup", path, kV2, bounds);
      ReadLevels(root + "/sys/fs/cgroup/unified", path, kV2, bounds);
    } else if (controllers.find(",memory,") != std::string::npos) {
      ReadLevels(root + "/sys/fs/cgroup/memory", path, kV1, bounds);
    }
  }
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
  ReadCgroups(root, &bounds);
  ReadResourceLimit(root, "Max address space", "VmSize:", "RLIMIT_AS", &bounds);
  ReadResourceLimit(root, "Max data size", "VmData:", "RLIMIT_DATA", &bounds);
  return bounds;
}

}  // namespace folio
