#include "server/client_shares.h"

#include <algorithm>

namespace folio::server {

ClientShares::Share ClientShares::Join(const std::string& client, int most) {
  if (most < 1) return nullptr;
  MutexLock lock(&mu_);
  ClientShare& share = shares_[client];
  if (share.num_requests >= most) return nullptr;
  ++share.num_requests;
  ++num_requests_;
  return Share(&share, Leave{this});
}

int ClientShares::num_requests() const {
  MutexLock lock(&mu_);
  return num_requests_;
}

void ClientShares::Remove(ClientShare* share) {
  MutexLock lock(&mu_);
  --num_requests_;
  if (--share->num_requests > 0) return;
  shares_.erase(std::find_if(shares_.begin(), shares_.end(),
                             [share](const auto& entry) { return &entry.second == share; }));
}

}  // namespace folio::server
