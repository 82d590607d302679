// Connections, for programs that make their own stubs.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace folio::client {

// Opens a plaintext channel with the limits that the API needs and waits until it is connected.
// Errors: UNAVAILABLE if nobody answers in time, CANCELLED. Thread-safe.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ConnectOptions& options);

}  // namespace folio::client
