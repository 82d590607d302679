#include "server/self_probe.h"

#include <netinet/in.h>
#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

socklen_t SizeOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

}  // namespace

SelfProbe::SelfProbe(std::vector<Port> ports, const Looks& looks) : looks_(looks) {
  for (Port& port : ports) probes_.push_back({std::move(port)});
}

// To connect to the wildcard address is to connect to the loopback interface (Linux, ip(7)).
void SelfProbe::Connect(Probe* probe) {
  const sockaddr_storage& address = probe->port.address;
  Fd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return;
  // It goes on when it must wait; what it fails of is seen with the first look.
  (void)::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), SizeOf(address));
  probe->socket = std::move(socket);
  probe->asked = false;
}

bool SelfProbe::IsAnswered(Probe* probe) {
  pollfd state{probe->socket.get(), POLLIN, 0};
  if (!probe->asked) state.events |= POLLOUT;
  ::poll(&state, 1, 0);
  if ((state.revents & (POLLIN | POLLERR | POLLHUP)) != 0) return true;
  if ((state.revents & POLLOUT) != 0) {
    const std::string& question = probe->port.question;
    (void)!::send(state.fd, question.data(), question.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (question.empty()) ::shutdown(state.fd, SHUT_WR);
    probe->asked = true;
  }
  return false;
}

std::optional<std::string> SelfProbe::Deaf() {
  for (Probe& probe : probes_) {
    ++probe.num_looks;
    if (!probe.socket.valid()) {
      if (probe.num_looks < looks_.between) continue;
      probe.num_looks = 0;
      if (probe.port.has_place()) Connect(&probe);
    } else if (IsAnswered(&probe)) {
      probe.socket.Close();
      probe.num_looks = 0;
    } else if (probe.num_looks >= looks_.patience) {
      return absl::StrCat(probe.port.what, " answers nobody any more");
    }
  }
  return std::nullopt;
}

std::string Http2Question() {
  // The preface, and a SETTINGS frame without settings.
  return std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
}

std::string TlsQuestion() { return ""; }

std::string Http1Question() { return "GET / HTTP/1.0\r\n\r\n"; }

}  // namespace folio::server
