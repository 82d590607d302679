#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace folio {

// Asked now and then during a long encoding; an error ends it and is what it returns. An empty one
// is never asked.
using Interrupt = std::function<absl::Status()>;

// Asks an Interrupt about every kIntervalBytes of text.
class InterruptCheck {
 public:
  static constexpr size_t kIntervalBytes = 64 << 10;

  // Borrows `interrupt`.
  explicit InterruptCheck(const Interrupt& interrupt) : interrupt_(interrupt) {}

  // After `num_bytes` more of the text. Errors: the Interrupt's.
  absl::Status Advance(size_t num_bytes) {
    since_asked_ += num_bytes;
    if (since_asked_ < kIntervalBytes || !interrupt_) return absl::OkStatus();
    since_asked_ = 0;
    return interrupt_();
  }

 private:
  const Interrupt& interrupt_;
  size_t since_asked_ = 0;
};

}  // namespace folio
