#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace folio {

inline constexpr size_t kMaxDocumentIdBytes = 1024;

// 1 to kMaxDocumentIdBytes bytes without control characters. Errors: INVALID_ARGUMENT.
absl::Status CheckDocumentId(std::string_view id);

// The name of a document's directory: [a-z0-9_-] as they are, every other byte as %XX, so that no
// part of an id has a meaning in a path, and ids which differ in case alone do on every file
// system. A long one is "%h" and its SHA-256. Different ids have different names.
std::string DirectoryNameOf(std::string_view id);

}  // namespace folio
