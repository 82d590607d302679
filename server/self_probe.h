#pragma once

#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/edge/fd.h"

namespace folio::server {

// Notices that a port of this server answers nobody any more: connects to it now and then, says
// something and waits for any answer. A connection that is closed is an answer, too; one that
// cannot be made, for lack of descriptors, says nothing. Never blocks; counts looks, not time, as
// Heartbeat does. Not thread-safe.
class SelfProbe {
 public:
  struct Port {
    std::string what;  // for the message: "the listener"
    sockaddr_storage address = {};
    std::string question;  // empty: it says that nothing comes
    // Whether one more connection takes nobody's place.
    std::function<bool()> has_place = [] { return true; };
  };
  // How many looks there are from an answer to the next question, and at most to an answer.
  struct Looks {
    int between = 30;
    int patience = 60;
  };
  SelfProbe(std::vector<Port> ports, const Looks& looks);

  // To be called about every half second: what has not answered, if something has not.
  std::optional<std::string> Deaf();

 private:
  struct Probe {
    Port port;
    Fd socket = Fd();  // valid while an answer is waited for
    bool asked = false;
    int num_looks = 0;
  };
  static void Connect(Probe* probe);
  static bool IsAnswered(Probe* probe);

  const Looks looks_;
  std::vector<Probe> probes_;
};

// What the ports are asked: HTTP/2 as a client begins it (RFC 9113, section 3.4), and a path of the
// metrics port that costs nothing.
std::string Http2Question();
// A TLS client that hangs up before its first word, which fails no handshake.
std::string TlsQuestion();
std::string Http1Question();

}  // namespace folio::server
