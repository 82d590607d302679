#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/clock.h"

namespace folio::server {

// So many a minute on average, and no more than a minute's at once. What comes may take more than
// is left, since nobody knows how long an answer will be: then the next one waits until that is
// made up for. Not thread-safe.
class MinuteRate {
 public:
  // 0: no bound. What was taken stays taken.
  void SetLimit(int64_t per_minute) {
    const auto limit = static_cast<double>(per_minute);
    level_ += limit - limit_;
    limit_ = limit;
  }

  // How long until one may be taken; 0: now.
  std::chrono::milliseconds Wait(SteadyTime now) {
    Refill(now);
    if (limit_ == 0 || level_ >= 1) return {};
    return std::chrono::milliseconds(1 + static_cast<int64_t>((1 - level_) / limit_ * 60000));
  }

  void Take(int64_t count, SteadyTime now) {
    if (limit_ == 0) return;
    Refill(now);
    level_ -= static_cast<double>(count);
  }

 private:
  void Refill(SteadyTime now) {
    const double minutes = std::chrono::duration<double, std::ratio<60>>(now - last_).count();
    last_ = now;
    level_ = std::min(limit_, level_ + std::max(0.0, minutes) * limit_);
  }

  double limit_ = 0;
  double level_ = 0;
  SteadyTime last_{};
};

}  // namespace folio::server
