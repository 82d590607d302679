#pragma once

#include <list>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace folio {

class EngineLoop;

// Something to do on the engine thread, between two steps.
struct EngineCommand {
  absl::AnyInvocable<void(EngineLoop&)> run;
  // Called when `run` has thrown, with RESOURCE_EXHAUSTED if the host has no memory: ends what the
  // command was for, which needs none.
  absl::AnyInvocable<void(EngineLoop&, const absl::Status&)> fail = [](EngineLoop&,
                                                                       const absl::Status&) {};
};

// A list, so that a command that was made is posted without memory: what must not be lost is made
// before the state changes that it goes with.
using EngineCommands = std::list<EngineCommand>;

inline EngineCommands OneCommand(EngineCommand command) {
  EngineCommands commands;
  commands.push_back(std::move(command));
  return commands;
}

}  // namespace folio
