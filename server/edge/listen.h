#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/edge/fd.h"

namespace folio::server {

// Sockets that listen on one address; several where its host has several (localhost).
struct Listeners {
  std::vector<Fd> sockets;  // non-blocking; not empty
  int port = 0;
  sockaddr_storage address = {};  // of the first one
};

// `address` is HOST:PORT, [IPv6]:PORT or :PORT; port 0: any free one, of the host's first address.
// `flag` is named in errors. Errors: INVALID_ARGUMENT, UNAVAILABLE when it cannot be bound.
absl::StatusOr<Listeners> ListenOn(const std::string& address, const std::string& flag);

}  // namespace folio::server
