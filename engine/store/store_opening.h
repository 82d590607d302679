#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/document_files.h"

namespace folio {

// Makes a store of an empty directory, or checks that it is one. Errors: FAILED_PRECONDITION if it
// is of another version or something else, those of the file system.
absl::Status CheckStoreFormat(FileSystem* files);

// The documents that are there, by their manifests alone. A directory whose manifest is torn,
// foreign or of another version goes to the quarantine, what no manifest names to the trash; what
// cannot be moved is counted. Errors: those of listing the documents.
absl::StatusOr<std::vector<std::shared_ptr<DocumentFiles>>> FindDocuments(
    const DocumentFiles::Surroundings& surroundings);

}  // namespace folio
