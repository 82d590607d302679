#include "engine/base/cgroups.h"

#include <fstream>

namespace folio {
namespace {

// `path` is of /proc/self/cgroup.
void AddLevels(const std::string& mount, std::string path, bool v2,
               std::vector<CgroupLevel>* levels) {
  if (path == "/" || path.find("/..") != std::string::npos) path.clear();
  while (!path.empty()) {
    levels->push_back({mount + path, path, v2});
    path.resize(path.rfind('/'));
  }
  levels->push_back({mount, "/", v2});
}

}  // namespace

// Lines of "number:controllers:path"; of v2 the number is 0 and there are no controllers.
std::vector<CgroupLevel> CgroupLevels(const std::string& root, std::string_view controller) {
  std::vector<CgroupLevel> levels;
  const std::string mounts = root + "/sys/fs/cgroup";
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
      AddLevels(mounts, path, true, &levels);
      AddLevels(mounts + "/unified", path, true, &levels);
    } else if (controllers.find("," + std::string(controller) + ",") != std::string::npos) {
      AddLevels(mounts + "/" + std::string(controller), path, false, &levels);
    }
  }
  return levels;
}

}  // namespace folio
