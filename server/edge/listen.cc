#include "server/edge/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/edge/listen_address.h"

namespace folio::server {
namespace {

constexpr int kBacklog = 1024;

sockaddr_storage AddressOf(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size);
  return bound;
}

int PortOf(const sockaddr_storage& bound) {
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

absl::StatusOr<Listeners> Bind(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  const int error = ::getaddrinfo(host, address.port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Listeners listeners;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (!listeners.sockets.empty() && address.port == "0") break;
    Fd socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket.get(), one->ai_addr, one->ai_addrlen) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
      continue;
    }
    if (listeners.sockets.empty()) {
      listeners.address = AddressOf(socket.get());
      listeners.port = PortOf(listeners.address);
    }
    listeners.sockets.push_back(std::move(socket));
  }
  if (listeners.sockets.empty()) return absl::UnavailableError(std::strerror(errno));
  return listeners;
}

}  // namespace

absl::StatusOr<Listeners> ListenOn(const std::string& address, const std::string& flag) {
  FOLIO_ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress(address));
  auto listeners = Bind(parsed);
  if (listeners.ok()) return listeners;
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " (",
                                             listeners.status().message(), "); see ", flag));
}

}  // namespace folio::server
