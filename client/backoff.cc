#include "client/backoff.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "client/status.h"

namespace folio::client {

absl::Duration RetryDelayFor(const RetryPolicy& policy, int num_failures,
                             const absl::Status& error) {
  absl::Duration delay = policy.initial_delay;
  for (int i = 1; i < num_failures && delay < policy.max_delay; ++i) delay *= 2;
  delay = std::min(delay, policy.max_delay);
  return std::max(delay, RetryDelay(error).value_or(absl::ZeroDuration()));
}

bool WaitFor(absl::Duration delay, CancelToken cancel) {
  std::mutex mutex;
  std::condition_variable_any never_notified;
  std::unique_lock<std::mutex> lock(mutex);
  const bool cancelled = never_notified.wait_for(lock, cancel, absl::ToChronoNanoseconds(delay),
                                                 [&cancel] { return cancel.stop_requested(); });
  return !cancelled && !cancel.stop_requested();
}

}  // namespace folio::client
