#include "server/service_rate.h"

#include <algorithm>

namespace folio::server {
namespace {

constexpr double kWeight = 0.2;  // of the newest interval
constexpr double kMinSeconds = 1;
constexpr double kMaxSeconds = 60;

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void ServiceRate::OnFinished(SteadyTime now) {
  MutexLock lock(&mu_);
  if (last_ != SteadyTime{}) {
    // An idle hour says nothing about the speed.
    const double interval = std::min(Seconds(last_, now), kMaxSeconds);
    mean_seconds_ =
        mean_seconds_ == 0 ? interval : (1 - kWeight) * mean_seconds_ + kWeight * interval;
  }
  last_ = now;
}

std::chrono::milliseconds ServiceRate::RetryDelay(int waiting, double prefill_seconds,
                                                  SteadyTime now) const {
  MutexLock lock(&mu_);
  // A departure that is overdue makes the mean worse before it happens.
  const double overdue = last_ == SteadyTime{} ? 0 : std::min(Seconds(last_, now), kMaxSeconds);
  const double interval = mean_seconds_ == 0 ? 0 : std::max(mean_seconds_, kWeight * overdue);
  const double seconds =
      std::clamp(std::max(interval * waiting, prefill_seconds), kMinSeconds, kMaxSeconds);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace folio::server
