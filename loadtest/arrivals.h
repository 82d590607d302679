// When requests arrive.
#pragma once

#include <cstdint>
#include <random>

namespace folio::loadtest {

// An endless open-loop schedule with Gamma-distributed gaps of mean 1 / rate. `burstiness` is the
// shape: 1 makes a Poisson process, less makes bursts, more makes even gaps (coefficient of
// variation 1 / sqrt(burstiness)). Equal arguments give equal schedules. Used by one thread.
class ArrivalSchedule {
 public:
  // REQUIRES: rate > 0, burstiness > 0.
  ArrivalSchedule(double rate_per_second, double burstiness, uint64_t seed);

  // The next arrival, in seconds from the beginning of the run.
  double next_seconds() const { return next_seconds_; }
  void Advance();

 private:
  std::mt19937_64 random_;
  std::gamma_distribution<double> gap_;
  double next_seconds_ = 0;
};

}  // namespace folio::loadtest
