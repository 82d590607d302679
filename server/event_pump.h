#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/base/mutex.h"
#include "engine/types/request.h"
#include "server/clock.h"

namespace folio::server {

// One stream as the pump sees it. All calls come from the pump thread. What Handle or Tick throw
// fails the stream: it is stopped.
class PumpTarget {
 public:
  virtual ~PumpTarget() = default;
  // An event of the engine.
  virtual void Handle(Event event) = 0;
  // The time, about every EventPump::kTick while registered.
  virtual void Tick(SteadyTime now) = 0;
  // The stream cannot go on: end with `status`. May come more than once, and comes again later if
  // it throws.
  virtual void Stop(const absl::Status& status) = 0;

 private:
  friend class EventPump;
  // Set under the mutex of the pump, once.
  std::atomic<bool> failed_{false};
  absl::Status failure_;
  std::shared_ptr<PumpTarget> next_failed_;
};

// Carries events from the engine thread to the streams on a thread of its own, so that the engine
// never waits for serialisation, and gives streams the time. Thread-safe. Outlives the engine,
// whose sinks it made.
class EventPump {
 public:
  static constexpr std::chrono::milliseconds kTick{25};
  static constexpr std::chrono::milliseconds kHousekeeping{500};

  // `housekeeping` is called on the pump thread about every kHousekeeping.
  explicit EventPump(Clock clock, std::function<void(SteadyTime)> housekeeping = {});
  // Delivers what is queued, then joins.
  ~EventPump();
  // Waits for housekeeping that runs; there is none afterwards. To be called before what it looks
  // at goes.
  void StopHousekeeping();

  // A sink for the engine whose events reach `target`; the target lives as long as the sink.
  std::shared_ptr<EventSink> SinkFor(std::shared_ptr<PumpTarget> target);

  // Ticks begin and end.
  void Register(std::shared_ptr<PumpTarget> target);
  void Unregister(const std::shared_ptr<PumpTarget>& target);

  // Ticks a target soon, once, registered or not. Without memory for it the target fails.
  void Wake(const std::shared_ptr<PumpTarget>& target) noexcept;

  // Calls Stop on every registered target, soon.
  void StopAll(const absl::Status& status);

  // Does something for a stream, on any thread; what that throws fails the stream.
  void Run(const std::shared_ptr<PumpTarget>& target, absl::FunctionRef<void()> work) noexcept;

 private:
  using Inbox = std::vector<std::pair<std::shared_ptr<PumpTarget>, Event>>;
  struct Turn;
  class Sink;

  void Post(const std::shared_ptr<PumpTarget>& target, Event event) noexcept;
  // Something of a stream was lost: it gets no more events, and Stop is called soon. Needs no
  // memory.
  void Fail(const std::shared_ptr<PumpTarget>& target, const absl::Status& status)
      FOLIO_REQUIRES(mu_);
  void Main();
  void Tick(Turn* turn, SteadyTime now);
  static void StopFailed(Turn* turn);
  bool HasWork() const FOLIO_REQUIRES(mu_) {
    return ending_ || !inbox_.empty() || !woken_.empty() || failed_ != nullptr ||
           stop_all_.has_value();
  }
  // Waits for work and takes it; false when the pump is to end after this turn.
  bool Take(Turn* turn);

  const Clock clock_;
  const std::function<void(SteadyTime)> housekeeping_;
  Mutex housekeeping_mu_;  // held while it runs
  bool keeps_house_ FOLIO_GUARDED_BY(housekeeping_mu_) = true;
  Mutex mu_;
  CondVar wake_;
  Inbox inbox_ FOLIO_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<PumpTarget>> woken_ FOLIO_GUARDED_BY(mu_);
  std::shared_ptr<PumpTarget> failed_ FOLIO_GUARDED_BY(mu_);  // the first of a chain
  std::set<std::shared_ptr<PumpTarget>> registered_ FOLIO_GUARDED_BY(mu_);
  std::optional<absl::Status> stop_all_ FOLIO_GUARDED_BY(mu_);
  bool ending_ FOLIO_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace folio::server
