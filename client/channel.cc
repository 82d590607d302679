#include "client/channel.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/credentials.h"

namespace folio::client {
namespace {

// Token ids of a 4 MiB text and lists of documents do not fit gRPC's own 4 MiB.
constexpr int kMaxReceiveBytes = 64 << 20;

// Calls go to servers that say SERVING (pick_first, gRPC's default, does not ask), and one that was
// refused meanwhile goes to the next. deploy/README.md has the same for clients in other languages.
constexpr char kServiceConfig[] = R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "healthCheckConfig": {"serviceName": ""},
  "methodConfig": [{
    "name": [{}],
    "retryPolicy": {
      "maxAttempts": 4,
      "initialBackoff": "0.2s",
      "maxBackoff": "2s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }]
})";

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ConnectOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetServiceConfigJSON(kServiceConfig);
  const auto credentials = ChannelCredentialsOf(options.credentials);
  if (!credentials.ok()) return credentials.status();
  if (const std::string& token = options.credentials.token_file;
      !token.empty() && !std::ifstream(token)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", token));
  }
  const std::shared_ptr<grpc::Channel> channel =
      grpc::experimental::CreateCustomChannelWithInterceptors(
          options.target, *credentials, arguments, TokenInterceptors(options.credentials));
  const absl::Time deadline = absl::Now() + options.timeout;
  // Short waits, because a wait for the connection cannot be cancelled.
  while (true) {
    const absl::Time wait_until = std::min(deadline, absl::Now() + absl::Milliseconds(200));
    if (channel->WaitForConnected(absl::ToChronoTime(wait_until))) return channel;
    if (options.cancel.stop_requested()) return absl::CancelledError("cancelled");
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("no server at ", options.target,
                       " is ready: none listens, or its model is loading, or it is stopping"));
    }
  }
}

void LeaveOutGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace folio::client
