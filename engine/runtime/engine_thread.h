#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

// Runs an EngineLoop on a thread of its own: commands in, events out through the sinks, statistics
// and document states published after every step. All methods are thread-safe.
class EngineThread {
 public:
  using Command = std::function<void(EngineLoop&)>;

  // Borrows loop and store, which nobody else may touch until this object is gone.
  EngineThread(EngineLoop* loop, KvStore* store);
  // Fails what runs with UNAVAILABLE and joins.
  ~EngineThread();

  // Applied in order, between two steps.
  void Post(Command command);

  // Requests posted and not yet running; raised by the caller of Post, read after each step.
  EngineStats Stats() const;

  struct DocumentProgress {
    int64_t prefilled_tokens = 0;
    int64_t kv_bytes = 0;
    int64_t summary_bytes = 0;
    absl::Status status;
  };
  std::optional<DocumentProgress> Progress(const std::string& document_id) const;

 private:
  void Main();
  // Waits for commands (or a deadline) if `idle`; false when stopping.
  bool TakeCommands(bool idle, std::vector<Command>* commands);
  void Publish(bool busy);

  EngineLoop* const loop_;
  KvStore* const store_;

  mutable std::mutex mu_;
  std::condition_variable wake_;
  std::vector<Command> inbox_;                                  // guarded by mu_
  bool stopping_ = false;                                       // guarded by mu_
  EngineStats stats_;                                           // guarded by mu_
  std::unordered_map<std::string, DocumentProgress> progress_;  // guarded by mu_

  std::thread thread_;
};

}  // namespace folio
