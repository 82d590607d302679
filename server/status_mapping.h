#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/document_info.h"

namespace folio::server {

// What a status says beside code and message.
struct ErrorDetail {
  // google.rpc.ErrorInfo.reason; empty: the usual one of the code.
  std::string reason;
  std::vector<std::pair<std::string, std::string>> metadata;
  // google.rpc.RetryInfo; 0: none. Unset: one second for UNAVAILABLE and for what is short for now
  // (engine/runtime/shortage.h), else none.
  std::optional<std::chrono::milliseconds> retry_delay;
};

// A status as gRPC sends it: code, message, and google.rpc details (ErrorInfo always, RetryInfo
// where a later try may succeed, QuotaFailure where a bound is reached: the subject is "server" or
// "tenant", the description a name of kLimitPayload) in grpc-status-details-bin. Without memory for
// all that the code goes alone. Source of the codes: proto/folio/v1.
grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetail& detail = {}) noexcept;

// Repeats the delay of RetryInfo in the trailer that gRPC's own retries obey,
// grpc-retry-pushback-ms. To be called with the status that a call is finished with, before it is.
// Source: gRFC A6.
void SendRetryPushback(const grpc::Status& status, grpc::CallbackServerContext* rpc) noexcept;

// NOT_FOUND for a document.
grpc::Status NoDocument(const std::string& id);

// NOT_FOUND of Engine::ResolveAttention.
grpc::Status NoAdapter(const absl::Status& status);

// `status` of a document that has failed or is not finished, with the reason.
grpc::Status DocumentRefusal(const DocumentInfo& document, const absl::Status& status);

// What is wrong with a field of a request: "stopping.max_new_tokens", "is 0, must be in [1, 16]".
struct FieldViolation {
  std::string field;
  std::string description;
};
using FieldViolations = std::vector<FieldViolation>;

// INVALID_ARGUMENT with google.rpc.BadRequest. The message has the first of them and how many more
// there are. OK if there is none.
grpc::Status BadFields(const FieldViolations& violations);
// Of one field.
grpc::Status BadField(const std::string& field, const std::string& description);

// The status with `prefix` in front of its message, in its details, too.
grpc::Status WithPrefix(const std::string& prefix, const grpc::Status& status);

// ErrorInfo.reason of a status that ToGrpcStatus has made; empty: none.
std::string ReasonOf(const grpc::Status& status);

// OK, CANCELLED, ...: for logs and metrics.
const char* CodeName(grpc::StatusCode code);
// Of those the ones that are no client's fault.
inline constexpr const char* kFaultCodes[] = {"INTERNAL", "UNKNOWN", "DATA_LOSS"};
bool IsFault(std::string_view code_name);

}  // namespace folio::server
