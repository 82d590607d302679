#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/store/file_system.h"

namespace folio {

// A FileSystem below `directory`, which is made if only its last name is missing and locked against
// other processes for as long as this lives. Errors: NOT_FOUND, FAILED_PRECONDITION (no directory,
// or in use by another process), PERMISSION_DENIED (cannot be written).
absl::StatusOr<std::unique_ptr<FileSystem>> OpenPosixFiles(const std::string& directory);

}  // namespace folio
