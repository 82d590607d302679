#include "server/event_pump.h"

#include <pthread.h>

namespace folio::server {

class EventPump::Sink final : public EventSink {
 public:
  Sink(EventPump* pump, std::shared_ptr<PumpTarget> target)
      : pump_(pump), target_(std::move(target)) {}
  void OnEvent(Event event) override { pump_->Post(target_, std::move(event)); }

 private:
  EventPump* const pump_;
  const std::shared_ptr<PumpTarget> target_;
};

// One round of the pump thread; its vectors keep their memory from round to round.
struct EventPump::Turn {
  Inbox events;
  std::vector<std::shared_ptr<PumpTarget>> targets;  // empty when it is not time
  std::optional<absl::Status> stop_all;
  // By the real clock: how often to look at the time is no matter of what the time is.
  SteadyTime next_tick = std::chrono::steady_clock::now();
  SteadyTime next_housekeeping = next_tick;
  bool keeps_house = false;
};

EventPump::EventPump(Clock clock, std::function<void(SteadyTime)> housekeeping)
    : clock_(std::move(clock)),
      housekeeping_(std::move(housekeeping)),
      thread_([this] { Main(); }) {}

EventPump::~EventPump() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

std::shared_ptr<EventSink> EventPump::SinkFor(std::shared_ptr<PumpTarget> target) {
  return std::make_shared<Sink>(this, std::move(target));
}

void EventPump::Register(std::shared_ptr<PumpTarget> target) {
  {
    MutexLock lock(&mu_);
    registered_.insert(std::move(target));
  }
  wake_.NotifyOne();
}

void EventPump::Unregister(const std::shared_ptr<PumpTarget>& target) {
  MutexLock lock(&mu_);
  registered_.erase(target);
}

void EventPump::StopAll(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    stop_all_ = status;
  }
  wake_.NotifyOne();
}

void EventPump::Post(const std::shared_ptr<PumpTarget>& target, Event event) {
  bool was_empty;
  {
    MutexLock lock(&mu_);
    was_empty = inbox_.empty();
    inbox_.emplace_back(target, std::move(event));
  }
  if (was_empty) wake_.NotifyOne();
}

bool EventPump::Take(Turn* turn) {
  MutexLock lock(&mu_);
  const bool nobody = registered_.empty();
  const SteadyTime end = nobody ? turn->next_housekeeping : turn->next_tick;
  while (!HasWork() && (!nobody || registered_.empty()) && wake_.WaitUntil(&mu_, end)) {
  }
  turn->events.swap(inbox_);
  turn->stop_all.swap(stop_all_);
  const SteadyTime now = std::chrono::steady_clock::now();
  if (now >= turn->next_tick || turn->stop_all.has_value()) {
    turn->targets.assign(registered_.begin(), registered_.end());
    turn->next_tick = now + kTick;
  }
  turn->keeps_house = now >= turn->next_housekeeping;
  if (turn->keeps_house) turn->next_housekeeping = now + kHousekeeping;
  return !ending_;
}

void EventPump::Main() {
  pthread_setname_np(pthread_self(), "event pump");
  Turn turn;
  bool more = true;
  while (more) {
    more = Take(&turn);
    for (auto& [target, event] : turn.events) target->Handle(std::move(event));
    turn.events.clear();
    const SteadyTime now = clock_();
    for (const auto& target : turn.targets) {
      if (turn.stop_all.has_value()) target->Stop(*turn.stop_all);
      target->Tick(now);
    }
    turn.targets.clear();
    turn.stop_all.reset();
    if (turn.keeps_house && housekeeping_) housekeeping_(now);
  }
}

}  // namespace folio::server
