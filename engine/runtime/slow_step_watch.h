#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "engine/sched/scheduler.h"
#include "engine/types/slow_step.h"

namespace folio {

// Tells of steps that take longer than a bound. Needs no memory. Engine thread only.
class SlowStepWatch {
 public:
  using Tell = std::function<void(const SlowStep&)>;
  // 0: none is told of.
  SlowStepWatch(double bound_seconds, Tell tell)
      : bound_seconds_(bound_seconds), tell_(std::move(tell)) {}

  // Notes what is in the step, before it is started: afterwards its sequences may be gone.
  void Begin(const std::vector<ScheduledTokens>& step);
  void End(double seconds);

 private:
  const double bound_seconds_;
  const Tell tell_;
  SlowStep step_;
};

}  // namespace folio
