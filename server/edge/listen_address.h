#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace folio::server {

struct ListenAddress {
  std::string host;  // without brackets; empty: all addresses
  std::string port;
};

// Takes HOST:PORT or [IPv6]:PORT apart. Errors: INVALID_ARGUMENT says what is expected.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& address);

}  // namespace folio::server
