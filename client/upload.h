// Uploading a document, resuming it when the connection breaks.
#pragma once

#include "absl/status/statusor.h"
#include "client/document_source.h"
#include "client/upload_options.h"
#include "folio/v1/documents.grpc.pb.h"

namespace folio::client {

// Blocks until the document is ready (or, with `detach`, wholly on the server). A stream that
// breaks is opened again with the same document id and goes on from the server's next_offset.
// Thread-safe. Errors: of the server; UNAVAILABLE after retry.max_failures failures without
// progress; CANCELLED; FAILED_PRECONDITION if a reused document is in state FAILED or has another
// size.
absl::StatusOr<v1::Document> RunUpload(v1::Documents::StubInterface& documents,
                                       const DocumentSource& source, const UploadOptions& options,
                                       UploadEventCallback on_event);

}  // namespace folio::client
