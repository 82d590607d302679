#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/runtime/engine.h"
#include "server/clock.h"
#include "server/prompt_pool.h"

namespace folio::server {

// Notices what only a new process mends: a step of the engine (a device that hangs, a thread that
// is stuck) or a task of the prompt pool that does not end. Counts the time between two looks, of
// each at most a part of the limit: a process that was stopped and continued is not taken for one
// that hangs. Not thread-safe.
class Liveness {
 public:
  explicit Liveness(std::chrono::milliseconds limit) : limit_(limit), most_of_look_(limit / 4) {}

  // To be called about every second. What has stopped, if something has for longer than the limit.
  std::optional<std::string> Stalled(const EngineStats& engine, const PromptPool::Progress& prompts,
                                     SteadyTime now);

 private:
  // For how long something was seen not to go on.
  struct Beat {
    double value = -1;
    SteadyTime::duration stopped{};
  };
  bool Stopped(bool busy, double value, SteadyTime::duration passed, Beat* beat) const;

  const std::chrono::milliseconds limit_;
  const SteadyTime::duration most_of_look_;
  SteadyTime last_look_{};
  Beat step_;
  Beat task_;
};

}  // namespace folio::server
