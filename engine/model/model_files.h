#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace folio {

// The files of a model and its adapters as they are at one moment. They are read one after the
// other: what is copied over them meanwhile would be a model of parts that do not belong together.
class ModelFiles {
 public:
  // Each path is a file or a directory, of which the files count that a model may have. What is not
  // there is as good as anything else.
  explicit ModelFiles(std::vector<std::string> paths)
      : paths_(std::move(paths)), stamps_(Look(paths_)) {}

  // One that is not as it was: written, replaced, removed, or new. Empty: there is none.
  std::string Changed() const;

 private:
  using Stamp = std::array<int64_t, 5>;  // device, inode, size, time of the last change
  using Stamps = std::map<std::string, Stamp>;

  static Stamps Look(const std::vector<std::string>& paths);

  const std::vector<std::string> paths_;
  const Stamps stamps_;
};

}  // namespace folio
