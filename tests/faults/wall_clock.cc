#include "tests/faults/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<int64_t> seconds_ahead{0};

}  // namespace

void folio::testing::SetWallClock(std::chrono::seconds ahead) { seconds_ahead = ahead.count(); }

// Stands in for that of the C library, in libraries too.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += seconds_ahead;
  }
  return result;
}
