#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/edge/fd.h"
#include "server/edge/tls.h"
#include "server/limits.h"

struct MHD_Daemon;
namespace prometheus {
class Collectable;
}

namespace folio::server {

// What the paths answer with; asked on the listener's threads.
struct MetricsAnswers {
  // Health: true is 200, false 503.
  std::function<bool()> live = [] { return true; };
  std::function<bool()> ready = [] { return true; };
  // Whether one with this header `authorization` (empty: none) may read the metrics.
  std::function<bool(std::string_view authorization)> may_read = [](std::string_view) {
    return true;
  };
};

// Serves GET /metrics in Prometheus' text format, and /healthz and /readyz for probes that speak
// no gRPC and show no token; over HTTP/1.1, with TLS or without. One thread for all connections:
// whoever sends half a request holds a connection, of which each address has few, and nobody else
// up.
class MetricsListener {
 public:
  // `tls`: its certificate and key; none: plaintext. Errors: INVALID_ARGUMENT, UNAVAILABLE when the
  // address cannot be bound or a file cannot be read.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Start(
      const std::string& address, const MetricsLimits& limits, const TlsFiles& tls,
      std::vector<std::shared_ptr<prometheus::Collectable>> sources, MetricsAnswers answers = {});
  ~MetricsListener();

  // Reads certificate and key again: new connections have them, those that are open end as before.
  // One thread. Errors: as Start, and the old ones stay in use.
  absl::Status ReadTlsAgain();

  int port() const { return port_; }
  const sockaddr_storage& address() const { return address_; }

  // What a scrape reads.
  std::string Scrape() const;
  const MetricsAnswers& answers() const { return answers_; }

 private:
  struct StopDaemon {
    void operator()(MHD_Daemon* daemon) const;
  };
  using Daemon = std::unique_ptr<MHD_Daemon, StopDaemon>;

  MetricsListener(const MetricsLimits& limits, TlsFiles tls,
                  std::vector<std::shared_ptr<prometheus::Collectable>> sources,
                  MetricsAnswers answers)
      : limits_(limits),
        tls_(std::move(tls)),
        sources_(std::move(sources)),
        answers_(std::move(answers)) {}
  // Takes connections from the socket, which is its own from then on.
  absl::StatusOr<Daemon> Serve(Fd socket);

  const MetricsLimits limits_;
  const TlsFiles tls_;
  const std::vector<std::shared_ptr<prometheus::Collectable>> sources_;
  const MetricsAnswers answers_;
  mutable Mutex scrape_mu_;  // two daemons, for a while
  Fd socket_;                // to serve from anew
  Daemon retired_;           // takes no new connections
  Daemon daemon_;
  int port_ = 0;
  sockaddr_storage address_ = {};
};

}  // namespace folio::server
