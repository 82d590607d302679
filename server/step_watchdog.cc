#include "server/step_watchdog.h"

#include <algorithm>
#include <utility>

namespace folio::server {
namespace {

constexpr std::chrono::milliseconds kLongestPeriod{1000};

}  // namespace

bool StepHeartbeat::Stalled(const EngineStats& stats, SteadyTime now) {
  if (!stats.busy || stats.last_step_unix_seconds != last_step_) {
    last_step_ = stats.last_step_unix_seconds;
    seen_ = now;
    return false;
  }
  return now - seen_ >= limit_;
}

StepWatchdog::StepWatchdog(const Engine* engine, std::chrono::milliseconds limit,
                           std::function<void()> on_stall)
    : engine_(engine),
      period_(std::clamp(limit / 4, std::chrono::milliseconds(1), kLongestPeriod)),
      heartbeat_(limit),
      on_stall_(std::move(on_stall)),
      thread_([this] { Main(); }) {}

StepWatchdog::~StepWatchdog() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  stop_.NotifyAll();
  thread_.join();
}

bool StepWatchdog::Wait() {
  const SteadyTime end = std::chrono::steady_clock::now() + period_;
  MutexLock lock(&mu_);
  while (!stopping_ && stop_.WaitUntil(&mu_, end)) {
  }
  return !stopping_;
}

void StepWatchdog::Main() {
  while (Wait()) {
    if (!heartbeat_.Stalled(engine_->Stats(), std::chrono::steady_clock::now())) continue;
    return on_stall_();
  }
}

}  // namespace folio::server
