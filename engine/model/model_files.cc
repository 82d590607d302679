#include "engine/model/model_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

namespace folio {
namespace {

bool MayBeOfModel(const std::filesystem::path& path) {
  static constexpr const char* kExtensions[] = {".json", ".safetensors", ".model",
                                                ".gguf", ".jinja",       ".txt"};
  const std::string extension = path.extension().string();
  return std::find(std::begin(kExtensions), std::end(kExtensions), extension) !=
         std::end(kExtensions);
}

}  // namespace

ModelFiles::Stamps ModelFiles::Look(const std::vector<std::string>& paths) {
  std::set<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;  // such a path is no directory
    std::filesystem::directory_iterator entry(path, error);
    if (error) files.insert(path);
    for (; entry != std::filesystem::directory_iterator() && !error; entry.increment(error)) {
      if (MayBeOfModel(entry->path())) files.insert(entry->path().string());
    }
  }
  Stamps stamps;
  for (const std::string& path : files) {
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    stamps[path] = {static_cast<int64_t>(found.st_dev), static_cast<int64_t>(found.st_ino),
                    found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
  }
  return stamps;
}

std::string ModelFiles::Changed() const {
  const Stamps now = Look(paths_);
  for (const auto* all : {&stamps_, &now}) {
    for (const auto& [path, stamp] : *all) {
      const auto before = stamps_.find(path);
      const auto after = now.find(path);
      const bool is_same =
          before != stamps_.end() && after != now.end() && before->second == after->second;
      if (!is_same) return path;
    }
  }
  return "";
}

}  // namespace folio
