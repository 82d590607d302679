#include "tests/server/tcp_proxy.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace folio::testing {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// The peer sees a reset instead of an orderly end.
void Reset(int fd) {
  if (fd < 0) return;
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  shutdown(fd, SHUT_RDWR);
}

}  // namespace

TcpProxy::TcpProxy(int target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  listen(listener_, 1);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this, target_port] { Main(target_port); });
}

TcpProxy::~TcpProxy() {
  Cut();
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void TcpProxy::Cut() {
  std::lock_guard<std::mutex> lock(mu_);
  cut_ = true;
  Reset(client_);
  Reset(server_);
}

void TcpProxy::Main(int target_port) {
  const int client = accept(listener_, nullptr, nullptr);
  if (client < 0) return;
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(target_port);
  connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  {
    std::lock_guard<std::mutex> lock(mu_);
    client_ = client;
    server_ = server;
    if (cut_) Reset(client);
    if (cut_) Reset(server);
  }
  std::thread back([this, client, server] { Forward(server, client); });
  Forward(client, server);
  back.join();
  std::lock_guard<std::mutex> lock(mu_);
  client_ = server_ = -1;
  close(client);
  close(server);
}

void TcpProxy::Forward(int from, int to) {
  char buffer[16384];
  for (ssize_t n; (n = read(from, buffer, sizeof(buffer))) > 0;) {
    for (ssize_t done = 0; done < n;) {
      const ssize_t sent = send(to, buffer + done, static_cast<size_t>(n - done), MSG_NOSIGNAL);
      if (sent <= 0) return;
      done += sent;
    }
  }
  shutdown(to, SHUT_WR);
}

}  // namespace folio::testing
