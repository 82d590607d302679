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
// is stuck) or a task of the prompt pool that does not end. Not thread-safe.
class Liveness {
 public:
  explicit Liveness(std::chrono::milliseconds limit) : limit_(limit) {}

  // To be called now and then. What has stopped, if something has for longer than the limit.
  std::optional<std::string> Stalled(const EngineStats& engine, const PromptPool::Progress& prompts,
                                     SteadyTime now);

 private:
  // When something was last seen to go on.
  struct Beat {
    double value = -1;
    SteadyTime seen{};
  };
  bool Stopped(bool busy, double value, SteadyTime now, Beat* beat) const;

  const std::chrono::milliseconds limit_;
  Beat step_;
  Beat task_;
};

}  // namespace folio::server
