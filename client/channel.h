// Connections, for programs that make their own stubs.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace folio::client {

// Opens a channel with the limits that the API needs, on connections that no other channel uses,
// and waits until a server is ready.
// Its calls go in turn to all servers that the target names and that serve (grpc.health.v1, service
// ""). One that is answered with UNAVAILABLE before anything else is sent again, 4 times in all,
// after 0.2 to 2 s; gRPC heeds the trailer grpc-retry-pushback-ms here, and not RetryInfo.
// Errors: INVALID_ARGUMENT for a file of the credentials that cannot be read, UNAVAILABLE if no
// server is ready in time, CANCELLED. Thread-safe.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ConnectOptions& options);

// For programs whose standard error people read: leaves out gRPC's own log lines (a proxy that
// serves no health, an address that does not answer), unless GRPC_VERBOSITY asks for them. What
// matters of them is in the status of a call.
void LeaveOutGrpcLog();

}  // namespace folio::client
