#include "engine/tools/model_directory.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace folio {

namespace fs = std::filesystem;

absl::Status MakeEmptyDirectory(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (!error && !fs::is_empty(dir, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(dir, " is not empty; give a new directory or empty this one"));
  }
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the directory ", dir, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::Status CopyModelFile(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot copy ", from, " to ", to, ": ", error.message()));
}

absl::Status WriteModelFile(const std::string& bytes, const std::string& to) {
  std::ofstream file(to, std::ios::binary);
  file << bytes;
  file.close();
  if (file) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("cannot write ", to, "; is there room?"));
}

}  // namespace folio
