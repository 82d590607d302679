#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace folio::client {

// Plaintext or TLS. Errors: INVALID_ARGUMENT for files that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(
    const Credentials& credentials);

// What puts the bearer token into the metadata of each call, over plaintext, too: behind a proxy
// that speaks TLS, or on one machine. Empty without a token file.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
TokenInterceptors(const Credentials& credentials);

}  // namespace folio::client
