// Document ids that are made from the content.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/attention_flags.h"
#include "client/document_source.h"

namespace folio::cli {

// "doc-" and 40 hexadecimal digits of the SHA-256 of the bytes, strategy and positions: equal for
// equal text under equal ones, so that a second question finds the document of the first. Errors:
// of reading the source; INTERNAL if the hash function fails.
absl::StatusOr<std::string> ContentId(const client::DocumentSource& source,
                                      const Attention& attention);

}  // namespace folio::cli
