#pragma once

#include <poll.h>

#include <cerrno>
#include <string_view>

#include "server/edge/socket_stream.h"

namespace folio::server {

// The socket behind which gRPC serves a connection. That gRPC has closed it is no error, whatever
// it has left unread: there is no more to be read then, and what is written is dropped.
class ServerSocket final : public SocketStream {
 public:
  using SocketStream::SocketStream;

  ssize_t Read(char* to, size_t size) override {
    const ssize_t count = SocketStream::Read(to, size);
    return count < 0 && errno == ECONNRESET ? 0 : count;
  }
  ssize_t Write(std::string_view bytes) override {
    const ssize_t count = SocketStream::Write(bytes);
    const bool closed = count < 0 && (errno == EPIPE || errno == ECONNRESET);
    return closed ? static_cast<ssize_t>(bytes.size()) : count;
  }
  // gRPC has closed it, though there may be more to be read.
  bool closed() const {
    pollfd state{fd(), 0, 0};
    return ::poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0;
  }
};

}  // namespace folio::server
