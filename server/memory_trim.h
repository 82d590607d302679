#pragma once

#include <chrono>
#include <cstdint>

#include "server/clock.h"

namespace folio::server {

// Has the allocator return large blocks to the system as soon as they are freed, whatever was freed
// before (glibc's own threshold grows with the blocks that it sees), and keep few arenas for the
// small ones. To be called at the start.
void SetUpAllocator();

// Gives memory that requests have left in the allocator back to the system. Not thread-safe.
class MemoryTrim {
 public:
  // To be called now and then. `idle`: nobody is kept waiting by some milliseconds of work;
  // `num_requests`: how many there have been. Trims every kInterval while there are some, and twice
  // after the last of them, which may be let go of late.
  void Tick(bool idle, int64_t num_requests, SteadyTime now);

 private:
  static constexpr std::chrono::seconds kInterval{5};
  static constexpr int kLast = 2;

  int64_t seen_requests_ = 0;
  int num_left_ = 0;
  SteadyTime next_{};
};

}  // namespace folio::server
