#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/limits.h"

struct MHD_Daemon;
namespace prometheus {
class Collectable;
}

namespace folio::server {

// What the health paths answer with: true is 200, false 503. Asked on the listener's thread.
struct HealthAnswers {
  std::function<bool()> live = [] { return true; };
  std::function<bool()> ready = [] { return true; };
};

// Serves GET /metrics in Prometheus' text format, and /healthz and /readyz for probes that speak
// neither gRPC nor its TLS. One thread for all connections: whoever sends
// half a request holds a connection, of which each address has few, and nobody else up.
class MetricsListener {
 public:
  // Errors: INVALID_ARGUMENT, UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Start(
      const std::string& address, const MetricsLimits& limits,
      std::vector<std::shared_ptr<prometheus::Collectable>> sources, HealthAnswers health = {});
  ~MetricsListener();

  int port() const { return port_; }
  const sockaddr_storage& address() const { return address_; }

  // What a scrape reads.
  std::string Scrape() const;
  const HealthAnswers& health() const { return health_; }

 private:
  MetricsListener(std::vector<std::shared_ptr<prometheus::Collectable>> sources,
                  HealthAnswers health)
      : sources_(std::move(sources)), health_(std::move(health)) {}

  const std::vector<std::shared_ptr<prometheus::Collectable>> sources_;
  const HealthAnswers health_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
  sockaddr_storage address_ = {};
};

}  // namespace folio::server
