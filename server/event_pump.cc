#include "server/event_pump.h"

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

EventPump::EventPump() : thread_([this] { Main(); }) {}

EventPump::~EventPump() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::shared_ptr<EventSink> EventPump::SinkFor(std::shared_ptr<PumpTarget> target) {
  return std::make_shared<Sink>(this, std::move(target));
}

void EventPump::Register(std::shared_ptr<PumpTarget> target) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ticking_.insert(std::move(target));
  }
  wake_.notify_one();
}

void EventPump::Unregister(const std::shared_ptr<PumpTarget>& target) {
  std::lock_guard<std::mutex> lock(mu_);
  ticking_.erase(target);
}

void EventPump::Post(const std::shared_ptr<PumpTarget>& target, Event event) {
  bool was_empty;
  {
    std::lock_guard<std::mutex> lock(mu_);
    was_empty = inbox_.empty();
    inbox_.emplace_back(target, std::move(event));
  }
  if (was_empty) wake_.notify_one();
}

void EventPump::Main() {
  std::vector<std::pair<std::shared_ptr<PumpTarget>, Event>> events;
  std::vector<std::shared_ptr<PumpTarget>> ticking;
  SteadyTime next_tick = std::chrono::steady_clock::now();
  for (;;) {
    bool stopping;
    {
      std::unique_lock<std::mutex> lock(mu_);
      const auto has_work = [this] { return stopping_ || !inbox_.empty(); };
      if (ticking_.empty()) {
        wake_.wait(lock, [&] { return has_work() || !ticking_.empty(); });
      } else {
        wake_.wait_until(lock, next_tick, has_work);
      }
      events.swap(inbox_);
      stopping = stopping_;
      const SteadyTime now = std::chrono::steady_clock::now();
      if (now >= next_tick) {
        ticking.assign(ticking_.begin(), ticking_.end());
        next_tick = now + kTick;
      }
    }
    for (auto& [target, event] : events) target->Handle(std::move(event));
    events.clear();
    const SteadyTime now = std::chrono::steady_clock::now();
    for (const auto& target : ticking) target->Tick(now);
    ticking.clear();
    if (stopping) return;
  }
}

}  // namespace folio::server
