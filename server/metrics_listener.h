#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/limits.h"

struct MHD_Daemon;
namespace prometheus {
class Collectable;
}

namespace folio::server {

// Serves GET /metrics in Prometheus' text format. One thread for all connections: whoever sends
// half a request holds a connection, of which each address has few, and nobody else up.
class MetricsListener {
 public:
  // Errors: INVALID_ARGUMENT, UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Start(
      const std::string& address, const MetricsLimits& limits,
      std::vector<std::shared_ptr<prometheus::Collectable>> sources);
  ~MetricsListener();

  int port() const { return port_; }
  const sockaddr_storage& address() const { return address_; }

  // What a scrape reads.
  std::string Scrape() const;

 private:
  explicit MetricsListener(std::vector<std::shared_ptr<prometheus::Collectable>> sources)
      : sources_(std::move(sources)) {}

  const std::vector<std::shared_ptr<prometheus::Collectable>> sources_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
  sockaddr_storage address_ = {};
};

}  // namespace folio::server
