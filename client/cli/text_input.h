// The texts that command lines name.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/console.h"
#include "client/document_source.h"

namespace folio::cli {

// Opens a file, or reads stdin ("-") or a pipe to its end, because a broken upload begins again.
// Errors: of FileSource::Open, marked as errors of a file.
absl::StatusOr<std::unique_ptr<client::DocumentSource>> OpenText(const std::string& path,
                                                                 Console& console);

}  // namespace folio::cli
