#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace folio {

// A directory with the limits of one level of the control groups that this process is in.
struct CgroupLevel {
  std::string dir;
  std::string name;  // "/a/b"; "/" for the root
  bool v2 = false;
};

// The levels of `controller` ("memory", "cpu"), of v1 and v2, from the process's own up to the
// root: any of them may have the tightest limit. Reads /proc/self/cgroup below `root`. In a
// container a level may have no directory: those outside of it.
std::vector<CgroupLevel> CgroupLevels(const std::string& root, std::string_view controller);

}  // namespace folio
