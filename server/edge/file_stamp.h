#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace folio::server {

// Tells files that were replaced or written from those that were not, symbolic links followed (a
// Kubernetes Secret is replaced by moving a link).
class FileStamps {
 public:
  explicit FileStamps(std::vector<std::string> paths) : paths_(std::move(paths)), seen_(Look()) {}

  // Whether one has changed since the last call, or since the construction.
  bool Changed() {
    std::vector<One> now = Look();
    if (now == seen_) return false;
    seen_ = std::move(now);
    return true;
  }

 private:
  using One = std::array<int64_t, 5>;

  std::vector<One> Look() const {
    std::vector<One> all;
    for (const std::string& path : paths_) {
      struct stat found {};
      const bool there = ::stat(path.c_str(), &found) == 0;
      all.push_back(there ? One{static_cast<int64_t>(found.st_dev),
                                static_cast<int64_t>(found.st_ino), found.st_size,
                                found.st_mtim.tv_sec, found.st_mtim.tv_nsec}
                          : One{});
    }
    return all;
  }

  std::vector<std::string> paths_;
  std::vector<One> seen_;
};

}  // namespace folio::server
