#pragma once

#include <cstdint>

namespace folio::server {

// Gives memory that a burst of requests has left in the allocator back to the system. Not
// thread-safe.
class MemoryTrim {
 public:
  // To be called now and then; `idle`: nobody is kept waiting by some milliseconds of work. Trims
  // once memory has grown by kWorthIt since the last time.
  void Tick(bool idle);

 private:
  static constexpr int64_t kWorthIt = int64_t{8} << 20;

  int64_t least_resident_ = -1;
};

}  // namespace folio::server
