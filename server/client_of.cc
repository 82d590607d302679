#include "server/client_of.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
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

TenantPtr AddressTenant(const std::string& client) {
  return std::make_shared<Tenant>(Tenant{.name = client});
}

}  // namespace folio::server
