// Waiting between attempts.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cancel_token.h"

namespace folio::client {

// How often and how fast a failed step is tried again.
struct RetryPolicy {
  // Failures in a row, without progress between them, after which the error is given back.
  int max_failures = 6;
  absl::Duration initial_delay = absl::Milliseconds(250);
  absl::Duration max_delay = absl::Seconds(8);
};

// Delay before the next attempt: doubles with every failure, and never less than the server asks
// for in `error` (RetryInfo).  REQUIRES: num_failures >= 1. Thread-safe.
absl::Duration RetryDelayFor(const RetryPolicy& policy, int num_failures,
                             const absl::Status& error);

// Waits for `delay` or until `cancel` is requested; false if it was cancelled. Thread-safe.
bool WaitFor(absl::Duration delay, CancelToken cancel);

}  // namespace folio::client
