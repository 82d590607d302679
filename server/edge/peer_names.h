#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"

namespace folio::server {

// The names in the certificates that clients have shown, by connection: its number stands behind #
// in the name that gRPC has for the peer, ADDRESS:PORT#PROCESS.NUMBER. Thread-safe.
class PeerNames {
 public:
  void Add(uint64_t connection, std::vector<std::string> names) {
    MutexLock lock(&mu_);
    names_[connection] = std::move(names);
  }
  void Remove(uint64_t connection) {
    MutexLock lock(&mu_);
    names_.erase(connection);
  }
  // None: it has shown none, or is gone.
  std::vector<std::string> Of(uint64_t connection) const {
    MutexLock lock(&mu_);
    const auto found = names_.find(connection);
    return found == names_.end() ? std::vector<std::string>() : found->second;
  }

 private:
  mutable Mutex mu_;
  std::map<uint64_t, std::vector<std::string>> names_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
