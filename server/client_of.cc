#include "server/client_of.h"

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

// gRPC encodes what may not stand in a URI as %XX.
std::string Decoded(const std::string& peer) {
  std::string decoded;
  for (size_t i = 0; i < peer.size(); ++i) {
    const bool encoded = peer[i] == '%' && i + 2 < peer.size() &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(peer[i + 1])) &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(peer[i + 2]));
    absl::StrAppend(&decoded, encoded ? absl::HexStringToBytes(peer.substr(i + 1, 2))
                                      : std::string(1, peer[i]));
    if (encoded) i += 2;
  }
  return decoded;
}

}  // namespace

// SCHEME:ADDRESS:PORT, and behind it, where the connection came through server/edge, #NUMBERS.
std::string ClientOf(const std::string& peer) {
  std::string address = Decoded(peer);
  address = address.substr(0, address.find('#'));
  if (const size_t scheme = address.find(':'); scheme != std::string::npos) {
    address.erase(0, scheme + 1);
  }
  return address.substr(0, address.rfind(':'));
}

std::optional<uint64_t> ConnectionOf(const std::string& peer) {
  const std::string decoded = Decoded(peer);
  const size_t mark = decoded.rfind('#');
  const size_t dot = decoded.rfind('.');
  if (mark == std::string::npos || dot == std::string::npos || dot < mark) return std::nullopt;
  uint64_t process = 0;
  uint64_t connection = 0;
  if (!absl::SimpleAtoi(decoded.substr(mark + 1, dot - mark - 1), &process) ||
      !absl::SimpleAtoi(decoded.substr(dot + 1), &connection) ||
      process != static_cast<uint64_t>(::getpid())) {
    return std::nullopt;
  }
  return connection;
}

TenantPtr AddressTenant(const std::string& client) {
  return std::make_shared<Tenant>(Tenant{.name = client});
}

}  // namespace folio::server
