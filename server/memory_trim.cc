#include "server/memory_trim.h"

#include <malloc.h>

namespace folio::server {

void SetUpAllocator() {
  constexpr int kLargeBlock = 128 << 10;
  constexpr int kArenas = 4;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  ::mallopt(M_ARENA_MAX, kArenas);
}

void MemoryTrim::Tick(bool idle, int64_t num_requests, SteadyTime now) {
  if (num_requests != seen_requests_) num_left_ = kLast;
  if (!idle || num_left_ == 0 || now < next_) return;
  if (num_requests == seen_requests_) --num_left_;
  seen_requests_ = num_requests;
  next_ = now + kInterval;
  ::malloc_trim(0);
}

}  // namespace folio::server
