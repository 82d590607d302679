#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/types/request.h"

namespace folio::server {

// One stream as the pump sees it.
class PumpTarget {
 public:
  virtual ~PumpTarget() = default;
  // An event of the engine. On the pump thread.
  virtual void Handle(Event event) = 0;
  // Called about every EventPump::kTick while registered. On the pump thread.
  virtual void Tick(SteadyTime now) = 0;
};

// Carries events from the engine thread to the streams on a thread of its own, so that the engine never waits
// for serialisation, and gives streams the time. Thread-safe.
class EventPump {
 public:
  static constexpr std::chrono::milliseconds kTick{25};

  EventPump();
  // Delivers what is queued, then joins.
  ~EventPump();

  // A sink for Engine::Submit whose events reach `target`; the target lives as long as the sink.
  std::shared_ptr<EventSink> SinkFor(std::shared_ptr<PumpTarget> target);

  // Ticks begin and end.
  void Register(std::shared_ptr<PumpTarget> target);
  void Unregister(const std::shared_ptr<PumpTarget>& target);

 private:
  class Sink;
  void Post(const std::shared_ptr<PumpTarget>& target, Event event);
  void Main();

  std::mutex mu_;
  std::condition_variable wake_;
  std::vector<std::pair<std::shared_ptr<PumpTarget>, Event>> inbox_;  // guarded by mu_
  std::set<std::shared_ptr<PumpTarget>> ticking_;                     // guarded by mu_
  bool stopping_ = false;                                             // guarded by mu_
  std::thread thread_;
};

}  // namespace folio::server
