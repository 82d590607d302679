#include "loadtest/arrivals.h"

namespace folio::loadtest {

ArrivalSchedule::ArrivalSchedule(double rate_per_second, double burstiness, uint64_t seed)
    : random_(seed), gap_(burstiness, 1.0 / (rate_per_second * burstiness)) {
  Advance();
}

void ArrivalSchedule::Advance() { next_seconds_ += gap_(random_); }

}  // namespace folio::loadtest
