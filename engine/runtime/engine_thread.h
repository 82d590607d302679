#pragma once

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/engine_command.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

// Runs an EngineLoop on a thread of its own: commands in, events out through the sinks, statistics
// published after every step. All methods are thread-safe.
class EngineThread {
 public:
  // Borrows loop and store, which nobody else may touch until this object is gone.
  EngineThread(EngineLoop* loop, KvStore* store);
  ~EngineThread() { Stop(); }
  // Does what was posted, fails what runs with UNAVAILABLE and joins. What is posted later is not
  // done.
  void Stop();

  // Applied in order, between two steps.
  void Post(EngineCommand command) { PostMade(OneCommand(std::move(command))); }
  void PostMade(EngineCommands commands) noexcept;
  // A request comes with it, for the load.
  void Post(EngineCommand command, const LoadItem& request);

  // As of the last step, or of the last command. What was posted since is only counted.
  EngineStats Stats() const;
  // The work that was there then, and the requests that came since.
  WorkLoad GetLoad() const;
  AnswerLengths answer_lengths() const;

 private:
  void Main();
  // Waits for commands (or a deadline) if `idle`; false when stopping.
  bool TakeCommands(bool idle, EngineCommands* commands);
  void Apply(EngineCommands* commands);
  void Publish(bool busy);
  // Of next_load_, if it is time; false: it is not, or there was no memory.
  bool DescribeLoad(bool busy);
  void TakeDescribedLoad() FOLIO_REQUIRES(mu_);

  EngineLoop* const loop_;
  KvStore* const store_;

  mutable Mutex mu_;
  CondVar wake_;
  EngineCommands inbox_ FOLIO_GUARDED_BY(mu_);
  bool stopping_ FOLIO_GUARDED_BY(mu_) = false;
  EngineStats stats_ FOLIO_GUARDED_BY(mu_);
  SteadyTime published_ FOLIO_GUARDED_BY(mu_) = {};
  WorkLoad load_ FOLIO_GUARDED_BY(mu_);
  // Requests that are not in it, as they were posted; of the first ones the loop has the commands.
  std::vector<LoadItem> new_requests_ FOLIO_GUARDED_BY(mu_);
  size_t num_taken_ FOLIO_GUARDED_BY(mu_) = 0;
  // Requests that are not in stats_; of the second number the loop has the commands.
  int num_posted_ FOLIO_GUARDED_BY(mu_) = 0;
  int num_posted_taken_ FOLIO_GUARDED_BY(mu_) = 0;
  // Its own thread's; has the memory of the one before.
  WorkLoad next_load_;
  SteadyTime describes_again_ = {};

  std::thread thread_;
};

}  // namespace folio
