#pragma once

#include <sys/socket.h>

#include <utility>

#include "server/edge/byte_stream.h"
#include "server/edge/fd.h"

namespace folio::server {

// A connected socket.
class SocketStream : public ByteStream {
 public:
  explicit SocketStream(Fd socket) : socket_(std::move(socket)) {}

  ssize_t Read(char* to, size_t size) override {
    return ::recv(socket_.get(), to, size, MSG_DONTWAIT);
  }
  ssize_t Write(std::string_view bytes) override {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void EndWriting() override { ::shutdown(socket_.get(), SHUT_WR); }
  Opening Open() override {
    char first = 0;
    const ssize_t count = ::recv(socket_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    return count > 0 ? Opening::kDone : Opening::kEnded;
  }
  bool wants_write() const override { return false; }
  int fd() const override { return socket_.get(); }

 private:
  const Fd socket_;
};

}  // namespace folio::server
