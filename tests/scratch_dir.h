// Files of a test are nobody else's: neither of a test that runs beside it nor of what lies in the
// system's directory of temporary files.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>

namespace folio {

// A directory of its own for one test, removed at its end.
class ScratchDir {
 public:
  ScratchDir() {
    path_ = (std::filesystem::temp_directory_path() / "folio_test_XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) {
      std::cerr << "cannot make " << path_ << '\n';
      std::abort();
    }
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

  std::string Write(const std::string& name, std::string_view bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

 private:
  std::string path_;
};

}  // namespace folio
