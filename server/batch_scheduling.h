#pragma once

#include <sched.h>

namespace folio::server {

// While it exists, the threads that this one starts, and those that they start, are scheduled as
// SCHED_BATCH: they have their share of the processors, but none of them takes one from a thread
// that computes the moment it is woken (sched(7)). A streamed token wakes three threads, and a
// machine without a free processor would leave the model's caches as often. Where the process runs
// under another policy than the usual one that stays.
class BatchScheduling {
 public:
  BatchScheduling() : changed_(sched_getscheduler(0) == SCHED_OTHER && Set(SCHED_BATCH)) {}
  ~BatchScheduling() {
    if (changed_) Set(SCHED_OTHER);
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  // Of this thread alone.
  static bool Set(int policy) {
    const sched_param none{};
    return sched_setscheduler(0, policy, &none) == 0;
  }

  const bool changed_;
};

}  // namespace folio::server
