#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/engine.h"
#include "engine/store/posix_files.h"

namespace folio {

// The files of a directory, which is made if it is not there. Errors: those of OpenPosixFiles.
inline absl::StatusOr<std::unique_ptr<FileSystem>> OpenFiles(const EngineOptions& options,
                                                             const std::string& directory) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> files, OpenPosixFiles(directory));
  if (options.wrap_files) return options.wrap_files(std::move(files));
  return files;
}

// Bytes of --kv-dir that pages, or documents, may take.
inline absl::StatusOr<int64_t> DiskBytes(const std::string& dir, int64_t chosen, const char* flag) {
  constexpr double kShare = 0.45;
  if (chosen > 0) return chosen;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (!error) return static_cast<int64_t>(static_cast<double>(space.available) * kShare);
  return absl::UnavailableError(
      absl::StrCat("cannot tell what is free in ", dir, ": ", error.message(), "; give ", flag));
}

}  // namespace folio
