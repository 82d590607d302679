#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "server/clock.h"

namespace folio::server {

// Whether a thread goes on, as another one sees it that looks now and then. Counts looks, not time:
// a process that was stopped and continued is not taken for one that hangs.
class Heartbeat {
 public:
  explicit Heartbeat(int max_looks) : max_looks_(max_looks) {}

  // By the thread, about as often as the other one looks.
  void Beat(SteadyTime now) {
    beat_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    beats_.fetch_add(1, std::memory_order_relaxed);
  }

  // The time of the last beat; nullopt before the first one. For people who look: it says nothing
  // of who is to blame.
  std::optional<SteadyTime> last() const {
    if (beats_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    return SteadyTime(SteadyTime::duration(beat_at_.load(std::memory_order_relaxed)));
  }

  // By the other one: true once, when no beat has come for max_looks. Never before the first beat.
  bool Stopped() {
    const uint64_t beats = beats_.load(std::memory_order_relaxed);
    num_looks_ = beats == seen_ ? num_looks_ + 1 : 0;
    seen_ = beats;
    return beats > 0 && num_looks_ == max_looks_;
  }

 private:
  const int max_looks_;
  std::atomic<uint64_t> beats_{0};
  std::atomic<SteadyTime::rep> beat_at_{0};
  uint64_t seen_ = 0;
  int num_looks_ = 0;
};

}  // namespace folio::server
