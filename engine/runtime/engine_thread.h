#pragma once

#include <list>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

// Runs an EngineLoop on a thread of its own: commands in, events out through the sinks, statistics
// published after every step. All methods are thread-safe.
class EngineThread {
 public:
  // Something to do between two steps.
  struct Command {
    absl::AnyInvocable<void(EngineLoop&)> run;
    // Called when `run` has thrown, with RESOURCE_EXHAUSTED if the host has no memory: ends what
    // the command was for, which needs none.
    absl::AnyInvocable<void(EngineLoop&, const absl::Status&)> fail = [](EngineLoop&,
                                                                         const absl::Status&) {};
  };
  // A list, so that a command that was made is posted without memory: what must not be lost is made
  // before the state changes that it goes with.
  using Commands = std::list<Command>;
  static Commands One(Command command);

  // Borrows loop and store, which nobody else may touch until this object is gone.
  EngineThread(EngineLoop* loop, KvStore* store);
  // Fails what runs with UNAVAILABLE and joins.
  ~EngineThread();

  // Applied in order, between two steps.
  void Post(Command command) { PostMade(One(std::move(command))); }
  void PostMade(Commands commands) noexcept;

  // As of the last step, or of the last command. What was posted since is not in them.
  EngineStats Stats() const;

 private:
  void Main();
  // Waits for commands (or a deadline) if `idle`; false when stopping.
  bool TakeCommands(bool idle, Commands* commands);
  void Apply(Commands* commands);
  void Publish(bool busy);

  EngineLoop* const loop_;
  KvStore* const store_;

  mutable Mutex mu_;
  CondVar wake_;
  Commands inbox_ FOLIO_GUARDED_BY(mu_);
  bool stopping_ FOLIO_GUARDED_BY(mu_) = false;
  EngineStats stats_ FOLIO_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace folio
