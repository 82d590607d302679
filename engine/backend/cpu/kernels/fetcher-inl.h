// What comes next is fetched into the cache while something else is computed.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Fetches what will be read next, some lines at a time: more would wait for each other.
class Fetcher {
 public:
  // `calls`: of Some, about.
  Fetcher(const std::byte* data, int64_t num_bytes, int64_t calls)
      : at_(data), end_(data + num_bytes), step_((num_bytes / calls + 63) / 64 * 64) {}
  FOLIO_INLINE void Some() { Until(std::min(at_ + step_, end_)); }
  FOLIO_INLINE void Line() {
    if (at_ < end_) Until(at_ + 64);
  }
  FOLIO_INLINE void Lines(int n) {
    if (at_ < end_) Until(std::min(at_ + 64 * n, end_));
  }
  FOLIO_INLINE void Rest() { Until(end_); }

 private:
  FOLIO_INLINE void Until(const std::byte* end) {
    for (; at_ < end; at_ += 64) Fetch(at_);
  }

  const std::byte* at_;
  const std::byte* const end_;
  const int64_t step_;
};

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
