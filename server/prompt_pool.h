#pragma once

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "server/clock.h"
#include "server/turn_queue.h"

namespace folio::server {

// Threads for what must not run in a gRPC reaction: tokenising, above all. Two lanes, so that short
// work never waits behind long: one thread does short tasks only, the other one takes short tasks
// while there is no long one. In a lane clients take turns; tasks of one client start in the order
// they were posted. Thread-safe.
class PromptPool {
 public:
  enum class Lane : uint8_t { kShort, kLong };
  // A task over this many bytes of text or token ids is long: some ten milliseconds of work.
  static constexpr size_t kLongBytes = 64 << 10;
  static Lane LaneFor(size_t bytes) { return bytes > kLongBytes ? Lane::kLong : Lane::kShort; }

  struct Task {
    std::function<void()> run;
    // Called instead of the rest of `run` when that throws: RESOURCE_EXHAUSTED when memory is
    // short. Does not throw.
    std::function<void(const absl::Status&)> fail;
  };

  PromptPool();
  ~PromptPool();

  // `client`: ClientOf.
  void Post(Lane lane, const std::string& client, Task task);

  // How far the work has come; busy: a task runs.
  struct Progress {
    int64_t num_finished = 0;
    bool busy = false;
    int64_t num_waiting = 0;
    // By the real clock; the beginning of time: none has ended.
    SteadyTime last_finished{};
  };
  Progress progress() const;

  // Runs what is queued, then joins; tasks posted later are dropped. Call from one thread.
  void Stop();

 private:
  using Queue = TurnQueue<Task>;
  // Without threads. The constructor delegates to it, so that the destructor ends the one thread
  // when the other cannot be had.
  struct Begun {};
  explicit PromptPool(Begun) {}

  void Main(Lane lane);
  // The queue that a thread of this lane takes its next task from; nullptr: there is none for it.
  Queue* NextQueue(Lane lane) FOLIO_REQUIRES(mu_);
  Queue& queue(Lane lane) FOLIO_REQUIRES(mu_) { return queues_[static_cast<size_t>(lane)]; }

  mutable Mutex mu_;
  CondVar wake_;
  int64_t num_finished_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t num_waiting_ FOLIO_GUARDED_BY(mu_) = 0;
  int num_running_ FOLIO_GUARDED_BY(mu_) = 0;
  SteadyTime last_finished_ FOLIO_GUARDED_BY(mu_){};
  std::array<Queue, 2> queues_ FOLIO_GUARDED_BY(mu_);
  bool stopping_ FOLIO_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace folio::server
