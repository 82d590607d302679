#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/clock.h"
#include "server/edge/connection.h"
#include "server/edge/fd.h"
#include "server/edge/listen.h"
#include "server/edge/peer_names.h"
#include "server/edge/tls.h"
#include "server/limits.h"

namespace folio::server {

// How often connections were refused or closed, by reason: no descriptors, too many connections
// (limit), room for a new one (idle), no HTTP/2 in time (handshake), no TLS or no certificate that
// is accepted (tls), what FrameGuard refuses (abuse), too much of unfinished messages in all
// (partial_messages).
using ClosedConnections = std::map<std::string, int64_t>;

// The listener in front of gRPC: accepts connections up to the limits, and passes their bytes
// through guards on a thread of its own (Connection). gRPC 1.51's own listener stops for good when
// descriptors run out; this one never does.
class Edge {
 public:
  // What it does not know itself. Called on its thread.
  struct Hooks {
    // Where it says who has shown which certificate, before the connection is handed over; null:
    // nobody asks.
    PeerNames* peer_names = nullptr;
    // Takes over a connected socket, and serves it.
    std::function<void(int fd)> handover;
    // About every half second.
    std::function<void()> on_sweep = [] {};
    // Of connections without the TLS that they should have.
    std::function<void(const std::string& peer, const std::string& why)> on_bad_tls =
        [](const std::string&, const std::string&) {};
    // The files of the certificate were changed: OK if the new ones are in use.
    std::function<void(const absl::Status& loaded)> on_certificate = [](const absl::Status&) {};
  };

  // `listen`: HOST:PORT, [IPv6]:PORT; port 0: a free one. `tls` is null or what connections are
  // opened with. Errors: INVALID_ARGUMENT (address), UNAVAILABLE (cannot be bound).
  static absl::StatusOr<std::unique_ptr<Edge>> Start(const std::string& listen,
                                                     const EdgeLimits& limits, Clock clock,
                                                     Hooks hooks,
                                                     std::unique_ptr<TlsReloader> tls = nullptr);
  ~Edge() { Stop(); }
  // Asks the clients of all connections to make their next calls on other ones. It still listens:
  // a new connection is told by gRPC that the server is leaving, as health checks are.
  void Drain();
  // Listens no more, waits a moment for what gRPC has closed to be sent, and closes everything.
  void Stop();

  int port() const { return listeners_.port; }
  const sockaddr_storage& address() const { return listeners_.address; }
  // As descriptors allow them.
  const EdgeLimits& limits() const { return limits_; }
  int num_connections() const;
  ClosedConnections closed() const;
  // Of the certificate in use; 0: there is none.
  int64_t certificate_expires_unix_seconds() const;

 private:
  using Connections = std::map<uint64_t, std::unique_ptr<Connection>>;  // in the order they came

  Edge(const EdgeLimits& limits, Clock clock, Hooks hooks, std::unique_ptr<TlsReloader> tls);
  absl::Status Listen(const std::string& listen);

  void Main();
  void Accept(int listener);
  // Without descriptors: takes the waiting client with the spare one, and closes it.
  void TurnAway(int listener);
  // Makes room for one more of this address; false: there is none.
  bool MakeRoom(const std::string& address);
  std::unique_ptr<ByteStream> StreamOf(Fd client) const;
  void OnEvents(uint64_t id);
  // Hands a connection over whose client has sent something, with TLS has done so, so that those
  // who never do cost gRPC nothing. kFailed, kEnded: it is to be closed, for the reason `why`.
  ByteStream::Opening Open(uint64_t id, Connection* connection, std::string* why);
  bool Serve(uint64_t id, Connection* connection);
  // Old ones that never said anything; the one that holds most, if all hold too much.
  void Sweep();
  void LookAtCertificate();
  // Those that gRPC, which closes all of its own, does not know of.
  void CloseUnserved();
  void Watch(int fd, uint64_t id) const;
  Connections::iterator Close(Connections::iterator connection, const std::string& why);
  void Count(const std::string& why);
  // What other threads want of this one.
  struct Orders {
    bool drain = false;
    bool end = false;
  };
  void Order(bool Orders::*what);
  void FollowOrders();

  const EdgeLimits limits_;
  const Clock clock_;
  const Hooks hooks_;
  const std::unique_ptr<TlsReloader> tls_;
  Fd epoll_;
  Fd wake_;
  Fd spare_;
  Listeners listeners_;
  // Of the thread alone.
  Connections connections_;
  std::map<std::string, int> of_address_;
  uint64_t next_id_;
  std::optional<SteadyTime> end_;  // when it is closed at the latest, once it listens no more

  mutable Mutex mu_;
  Orders orders_ FOLIO_GUARDED_BY(mu_);
  int num_connections_ FOLIO_GUARDED_BY(mu_) = 0;
  ClosedConnections closed_ FOLIO_GUARDED_BY(mu_);
  int64_t certificate_expires_ FOLIO_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace folio::server
