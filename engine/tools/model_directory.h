#pragma once

#include <string>

#include "absl/status/status.h"

namespace folio {

// Errors: ALREADY_EXISTS when `dir` is not empty; FAILED_PRECONDITION when it cannot be made.
absl::Status MakeEmptyDirectory(const std::string& dir);

// Copies one of the small files of a model. Errors: FAILED_PRECONDITION.
absl::Status CopyModelFile(const std::string& from, const std::string& to);

// Writes one of them. Errors: DATA_LOSS when the disk is full.
absl::Status WriteModelFile(const std::string& bytes, const std::string& to);

}  // namespace folio
