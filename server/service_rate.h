#pragma once

#include <chrono>
#include <mutex>

#include "engine/types/request.h"

namespace folio::server {

// How fast requests leave the server, to tell a refused client when to come back. Thread-safe.
class ServiceRate {
 public:
  // A request has left and made room for another.
  void OnFinished(SteadyTime now);

  // When `waiting` requests are likely to have left: their number times the recent mean time
  // between two departures, within [1 s, 60 s].
  std::chrono::milliseconds RetryDelay(int waiting, SteadyTime now) const;

 private:
  mutable std::mutex mu_;
  SteadyTime last_{};        // guarded by mu_; epoch: none yet
  double mean_seconds_ = 0;  // guarded by mu_; exponentially weighted
};

}  // namespace folio::server
