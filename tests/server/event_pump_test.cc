// What streams throw on the pump thread. tests/allocation has what the pump does without memory.
#include "server/event_pump.h"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <thread>

#include "engine/base/catch_errors.h"

namespace folio::server {
namespace {

class Stream final : public PumpTarget {
 public:
  void Handle(Event) override {
    if (++num_events == throws_at) throw std::bad_alloc();
    if (num_events == expected) handled.set_value();
  }
  void Tick(SteadyTime) override {
    if (tick_throws) throw std::bad_alloc();
  }
  void Stop(const absl::Status& status) override {
    if (num_stops++ < stops_that_throw) throw std::bad_alloc();
    stopped.set_value(status);
  }

  int throws_at = 0;
  int expected = 0;
  bool tick_throws = false;
  int stops_that_throw = 0;
  std::atomic<int> num_events{0};
  std::atomic<int> num_stops{0};
  std::promise<void> handled;
  std::promise<absl::Status> stopped;
};

SteadyTime Now() { return std::chrono::steady_clock::now(); }

TEST(EventPump, WhatAStreamThrowsEndsItAlone) {
  EventPump pump(Now);
  const auto bad = std::make_shared<Stream>();
  const auto good = std::make_shared<Stream>();
  bad->throws_at = 2;
  good->expected = 10;
  const auto bad_sink = pump.SinkFor(bad);
  const auto good_sink = pump.SinkFor(good);
  for (int i = 0; i < 10; ++i) {
    bad_sink->OnEvent(PrefillEvent{});
    good_sink->OnEvent(PrefillEvent{});
  }
  EXPECT_EQ(bad->stopped.get_future().get(), OutOfMemory());
  good->handled.get_future().wait();
  EXPECT_EQ(bad->num_events, 2) << "it hears of nothing more";
  EXPECT_EQ(good->num_stops, 0);
}

TEST(EventPump, AStreamThatCannotBeStoppedIsStoppedLater) {
  EventPump pump(Now);
  const auto stream = std::make_shared<Stream>();
  stream->tick_throws = true;
  stream->stops_that_throw = 3;
  pump.Register(stream);
  EXPECT_EQ(stream->stopped.get_future().get(), OutOfMemory());
  EXPECT_EQ(stream->num_stops, 4);
  pump.Unregister(stream);
}

TEST(EventPump, WhatAReactionThrowsEndsItsStream) {
  EventPump pump(Now);
  const auto stream = std::make_shared<Stream>();
  pump.Run(stream, [] {});
  pump.Run(stream, [] { throw std::bad_alloc(); });
  EXPECT_EQ(stream->stopped.get_future().get(), OutOfMemory());
  EXPECT_EQ(stream->num_stops, 1);
}

TEST(EventPump, HousekeepingThatThrowsComesAgain) {
  std::atomic<int> times{0};
  std::promise<void> again;
  EventPump pump(Now, [&](SteadyTime) {
    if (++times == 1) throw std::bad_alloc();
    if (times == 2) again.set_value();
  });
  again.get_future().wait();
}

// The engine that it looks at goes after that.
TEST(EventPump, HousekeepingIsWaitedForWhenItIsStopped) {
  std::promise<void> began;
  std::promise<void> may_end;
  std::atomic<int> running{0};
  EventPump pump(Now, [&](SteadyTime) {
    ++running;
    began.set_value();  // throws if there is a second time
    may_end.get_future().wait();
    --running;
  });
  began.get_future().wait();
  std::thread stops([&] {
    pump.StopHousekeeping();
    EXPECT_EQ(running, 0);
  });
  may_end.set_value();
  stops.join();
}

}  // namespace
}  // namespace folio::server
