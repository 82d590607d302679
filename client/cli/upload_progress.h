// Uploads as the commands show them.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/document_source.h"
#include "client/upload_options.h"

namespace folio::cli {

// Uploads with a progress bar on stderr: bytes while they are sent, then tokens of the prefill.
// With
// --json every event is a line on stdout instead.  Errors: of Client::UploadDocument.
absl::StatusOr<v1::Document> UploadWithProgress(client::Client& client, Invocation& invocation,
                                                const client::DocumentSource& source,
                                                const client::UploadOptions& options);

}  // namespace folio::cli
