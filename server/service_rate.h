#pragma once

#include <chrono>

#include "engine/base/mutex.h"
#include "engine/types/request.h"

namespace folio::server {

// How fast requests leave the server, to tell a refused client when to come back. Thread-safe.
class ServiceRate {
 public:
  // A request has left and made room for another.
  void OnFinished(SteadyTime now);

  // When `waiting` requests are likely to have left: their number times the recent mean time
  // between two departures, and no sooner than their prompts can be read, which takes
  // `prefill_seconds` (0: not known); within [1 s, 60 s].
  std::chrono::milliseconds RetryDelay(int waiting, double prefill_seconds, SteadyTime now) const;

 private:
  mutable Mutex mu_;
  SteadyTime last_ FOLIO_GUARDED_BY(mu_) = {};     // epoch: none yet
  double mean_seconds_ FOLIO_GUARDED_BY(mu_) = 0;  // exponentially weighted
};

}  // namespace folio::server
