#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/base/mutex.h"

namespace folio::server {

struct ClientShare {
  int num_requests = 0;  // of ClientShares
};

// Counts the requests of each client, so that one does not take all places of the prompt pool.
// Outlives what it has given. Thread-safe.
class ClientShares {
 public:
  struct Leave {
    ClientShares* shares = nullptr;
    void operator()(ClientShare* share) const { shares->Remove(share); }
  };
  using Share = std::unique_ptr<ClientShare, Leave>;

  // For one request of this client, which counts as long as it is held. Null: `most` of them count.
  Share Join(const std::string& client, int most);
  // Of all clients.
  int num_requests() const;

 private:
  void Remove(ClientShare* share);

  mutable Mutex mu_;
  int num_requests_ FOLIO_GUARDED_BY(mu_) = 0;
  std::map<std::string, ClientShare> shares_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
