#include "server/edge/listen_address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace folio::server {

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  uint32_t number = 0;
  const bool digits = std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port, &number) || number > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot listen on '", address, "': HOST:PORT is expected, with a port up to 65535"));
  }
  std::string host = address.substr(0, colon);
  const bool brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (host.find_first_of("[] ") != std::string::npos ||
      (!brackets && host.find(':') != std::string::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on '", address,
                     "': HOST:PORT is expected, an IPv6 address in brackets: [::1]:50051"));
  }
  return ListenAddress{std::move(host), port};
}

}  // namespace folio::server
