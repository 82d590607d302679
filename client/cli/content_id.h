// Document ids that are made from the content.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/attention_flags.h"
#include "client/cli/format_flags.h"
#include "client/document_source.h"

namespace folio::cli {

// Of the SHA-256 of the bytes, strategy, positions, adapter, format and system text.
struct ContentId {
  // "doc-" and 40 hexadecimal digits: equal for equal text under equal strategies, so that a second
  // question finds the document of the first.
  std::string document_id;
  // The other 24 digits: who has the text can resume its upload, who has the id cannot.
  std::string upload_token;
};

// Errors: of reading the source; INTERNAL if the hash function fails.
absl::StatusOr<ContentId> ContentIdOf(const client::DocumentSource& source,
                                      const Attention& attention, const FormatFlags& format);

}  // namespace folio::cli
