#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"

namespace folio::server {

// When the engine last did something. A step that never ends means that a device hangs, which
// nothing but a new process mends.
class StepHeartbeat {
 public:
  explicit StepHeartbeat(std::chrono::milliseconds limit) : limit_(limit) {}

  // To be called now and then: whether a step has lasted longer than the limit.
  bool Stalled(const EngineStats& stats, SteadyTime now);

 private:
  const std::chrono::milliseconds limit_;
  double last_step_ = -1;
  SteadyTime seen_{};
};

// A thread that looks at the heartbeat of an engine.
class StepWatchdog {
 public:
  // Calls on_stall once, from its own thread. The engine outlives the watchdog.
  StepWatchdog(const Engine* engine, std::chrono::milliseconds limit,
               std::function<void()> on_stall);
  ~StepWatchdog();

 private:
  void Main();
  // Waits for one period; false when it is time to stop.
  bool Wait();

  const Engine* const engine_;
  const std::chrono::milliseconds period_;
  StepHeartbeat heartbeat_;
  const std::function<void()> on_stall_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ FOLIO_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace folio::server
