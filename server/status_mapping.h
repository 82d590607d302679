#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"

namespace folio::server {

// An engine status as gRPC sends it: code, message, and google.rpc details (ErrorInfo always, RetryInfo where
// a later try may succeed). Source of the codes: serving conventions of the API, see proto/folio/v1.
grpc::Status ToGrpcStatus(const absl::Status& status);

// INVALID_ARGUMENT for one field, with google.rpc.BadRequest.
grpc::Status BadField(const std::string& field, const std::string& description);

}  // namespace folio::server
