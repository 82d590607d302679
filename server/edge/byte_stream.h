#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace folio::server {

// One end of a connection that does not block: a socket, or TLS on one. One thread.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // As recv and send: how many bytes, 0 at the end of what the other side sends, -1 with errno,
  // EAGAIN if it would have to wait.
  virtual ssize_t Read(char* to, size_t size) = 0;
  virtual ssize_t Write(std::string_view bytes) = 0;
  // Whether more may have come where a read gives less than it could: one record of TLS.
  virtual bool reads_in_parts() const { return false; }
  // Tells the other side that no more follows.
  virtual void EndWriting() = 0;

  // kEnded: the client has closed it; kFailed: `failure` says why.
  enum class Opening { kWaits, kDone, kEnded, kFailed };
  // Goes on with what comes before the first byte, to be called when the socket can be read (or
  // written, if wants_write) until it is done. A client that has sent nothing is waited for.
  virtual Opening Open() = 0;
  virtual bool wants_write() const = 0;
  virtual std::string failure() const { return ""; }
  // After Open: the names in the certificate that the client has shown; none without TLS.
  virtual std::vector<std::string> peer_names() const { return {}; }

  virtual int fd() const = 0;
};

}  // namespace folio::server
