// NDJSON output.
#pragma once

#include <google/protobuf/message.h>

#include <iosfwd>

#include "absl/status/status.h"

namespace folio::cli {

// The message as one line in the JSON mapping of Protocol Buffers, with the field names of the
// .proto files and with zero values. 64-bit integers are strings, as that mapping wants.
void WriteJsonLine(std::ostream& out, const google::protobuf::Message& message);

// {"error": {"code": "NOT_FOUND", "message": ..., "reason": ..., "retry_delay_seconds": ...}}; the
// last two only if the server sent them.
void WriteErrorLine(std::ostream& out, const absl::Status& status);

}  // namespace folio::cli
