#include "client/cli/upload_progress.h"

#include "client/cli/json_lines.h"
#include "client/cli/progress_line.h"

namespace folio::cli {

absl::StatusOr<v1::Document> UploadWithProgress(client::Client& client, Invocation& invocation,
                                                const client::DocumentSource& source,
                                                const client::UploadOptions& options) {
  ProgressLine line(invocation.console);
  Progress bytes{.label = "upload", .unit = ProgressUnit::kBytes, .total = source.size_bytes()};
  return client.UploadDocument(source, options, [&](const v1::UploadDocumentEvent& event) {
    if (invocation.json) WriteJsonLine(invocation.console.out, event);
    if (event.has_created()) {
      bytes.done = bytes.skipped = event.created().next_offset();
      line.Update(bytes);
    } else if (event.has_ack()) {
      bytes.done = event.ack().next_offset();
      line.Update(bytes);
    } else if (event.has_progress() && bytes.done >= bytes.total) {
      line.Update({.label = "prefill",
                   .done = event.progress().prefilled_tokens(),
                   .total = event.progress().known_tokens()});
    }
  });
}

}  // namespace folio::cli
