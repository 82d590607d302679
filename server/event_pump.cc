#include "server/event_pump.h"

#include <pthread.h>

#include <new>

#include "engine/base/catch_errors.h"

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
  std::vector<std::shared_ptr<PumpTarget>> woken;
  bool ticks = false;
  std::vector<std::shared_ptr<PumpTarget>> targets;  // those that tick
  std::optional<absl::Status> stop_all;
  std::shared_ptr<PumpTarget> failed;  // the first of a chain; stays until it could be stopped
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

void EventPump::StopHousekeeping() {
  MutexLock lock(&housekeeping_mu_);
  keeps_house_ = false;
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

void EventPump::Post(const std::shared_ptr<PumpTarget>& target, Event event) noexcept {
  bool was_empty;
  {
    MutexLock lock(&mu_);
    was_empty = !HasWork();
    if (target->failed_) return;
    try {
      inbox_.emplace_back(target, std::move(event));
    } catch (const std::bad_alloc&) {
      Fail(target, OutOfMemory());
    }
  }
  if (was_empty) wake_.NotifyOne();
}

void EventPump::Wake(const std::shared_ptr<PumpTarget>& target) noexcept {
  bool was_empty;
  {
    MutexLock lock(&mu_);
    was_empty = !HasWork();
    if (target->failed_) return;
    try {
      woken_.push_back(target);
    } catch (const std::bad_alloc&) {
      Fail(target, OutOfMemory());
    }
  }
  if (was_empty) wake_.NotifyOne();
}

void EventPump::Fail(const std::shared_ptr<PumpTarget>& target, const absl::Status& status) {
  if (target->failed_.exchange(true)) return;
  target->failure_ = status;
  target->next_failed_ = std::move(failed_);
  failed_ = target;
}

void EventPump::Run(const std::shared_ptr<PumpTarget>& target,
                    absl::FunctionRef<void()> work) noexcept {
  const absl::Status done = CatchErrors(work);
  if (done.ok()) return;
  {
    MutexLock lock(&mu_);
    Fail(target, done);
  }
  wake_.NotifyOne();
}

bool EventPump::Take(Turn* turn) {
  MutexLock lock(&mu_);
  const bool nobody = registered_.empty();
  const SteadyTime end = nobody ? turn->next_housekeeping : turn->next_tick;
  while (!HasWork() && (!nobody || registered_.empty()) && wake_.WaitUntil(&mu_, end)) {
  }
  turn->events.swap(inbox_);
  turn->woken.swap(woken_);
  if (stop_all_.has_value()) turn->stop_all = std::exchange(stop_all_, std::nullopt);
  while (failed_ != nullptr) {
    std::shared_ptr<PumpTarget> next = std::move(failed_->next_failed_);
    failed_->next_failed_ = std::move(turn->failed);
    turn->failed = std::exchange(failed_, std::move(next));
  }
  const SteadyTime now = std::chrono::steady_clock::now();
  if (now >= turn->next_tick || turn->stop_all.has_value()) {
    turn->next_tick = now + kTick;
    try {
      turn->targets.assign(registered_.begin(), registered_.end());
      turn->ticks = true;
    } catch (const std::bad_alloc&) {  // the next tick may find memory
      turn->targets.clear();
    }
  }
  turn->keeps_house = now >= turn->next_housekeeping;
  if (turn->keeps_house) turn->next_housekeeping = now + kHousekeeping;
  return !ending_;
}

void EventPump::Tick(Turn* turn, SteadyTime now) {
  if (!std::exchange(turn->ticks, false)) return;
  for (const auto& target : turn->targets) {
    Run(target, [&] {
      if (turn->stop_all.has_value()) target->Stop(*turn->stop_all);
      target->Tick(now);
    });
  }
  turn->targets.clear();
  turn->stop_all.reset();
}

void EventPump::StopFailed(Turn* turn) {
  std::shared_ptr<PumpTarget> target = std::move(turn->failed);
  while (target != nullptr) {
    std::shared_ptr<PumpTarget> next = std::move(target->next_failed_);
    if (!CatchErrors([&] { target->Stop(target->failure_); }).ok()) {
      target->next_failed_ = std::move(turn->failed);
      turn->failed = std::move(target);
    }
    target = std::move(next);
  }
}

void EventPump::Main() {
  pthread_setname_np(pthread_self(), "event pump");
  Turn turn;
  bool more = true;
  while (more) {
    more = Take(&turn);
    for (auto& [target, event] : turn.events) {
      if (target->failed_) continue;
      Run(target, [&target = target, &event = event] { target->Handle(std::move(event)); });
    }
    turn.events.clear();
    const SteadyTime now = clock_();
    for (const auto& target : turn.woken) {
      if (!target->failed_) Run(target, [&] { target->Tick(now); });
    }
    turn.woken.clear();
    Tick(&turn, now);
    StopFailed(&turn);
    if (!turn.keeps_house || !housekeeping_) continue;
    MutexLock lock(&housekeeping_mu_);
    if (!keeps_house_) continue;
    // What there was no memory for is done the next time.
    CatchErrors([&] { housekeeping_(now); }).IgnoreError();
  }
}

}  // namespace folio::server
