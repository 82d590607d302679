// Errors of the server as absl::Status, with their google.rpc details.
//
// FromGrpcStatus keeps the details that a server sends with an error (ErrorInfo, BadRequest,
// RetryInfo) as payloads of the absl::Status, under their usual type URLs. All functions are pure
// and thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace folio::client {

// The same code, message and details. Of several details of one type the first is kept.
absl::Status FromGrpcStatus(const grpc::Status& status);

// When the server says to come back (google.rpc.RetryInfo); nullopt if it says nothing.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// ErrorInfo.reason, such as "QUEUE_FULL"; empty if there is none.
std::string ErrorReason(const absl::Status& status);

// One readable line without control characters, for example
//   INVALID_ARGUMENT: long_heads.chunk_size: 24 is not a multiple of the page size 16 (retry in 2
//   s)
// Field violations replace the message; ErrorInfo's reason is added where there are none.
std::string FormatError(const absl::Status& status);

}  // namespace folio::client
