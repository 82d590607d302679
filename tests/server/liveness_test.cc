#include "server/liveness.h"

#include <gtest/gtest.h>

#include <future>

#include "server/service_context.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using server::Liveness;
using server::PromptPool;

EngineStats Stats(bool busy, double last_step) {
  EngineStats stats;
  stats.busy = busy;
  stats.last_step_unix_seconds = last_step;
  return stats;
}

SteadyTime At(int ms) { return SteadyTime{} + std::chrono::milliseconds(ms); }

TEST(Liveness, OnlyABusyEngineWithoutStepsStalls) {
  Liveness liveness(std::chrono::milliseconds(1000));
  const auto stalled = [&](bool busy, double last_step, int ms) {
    return liveness.Stalled(Stats(busy, last_step), {}, At(ms)).has_value();
  };
  for (const int ms : {0, 250, 500, 750, 999}) EXPECT_FALSE(stalled(true, 1, ms));
  EXPECT_FALSE(stalled(true, 2, 1200));  // a step has ended
  for (const int ms : {1400, 1600, 1800, 2000, 2199}) EXPECT_FALSE(stalled(true, 2, ms));
  EXPECT_TRUE(stalled(true, 2, 2200));
  EXPECT_FALSE(stalled(false, 2, 2400));  // idle: nothing is expected
  for (const int ms : {2600, 2800, 3000, 3200}) EXPECT_FALSE(stalled(true, 2, ms));
}

// It was stopped in the middle of a step, which then goes on.
TEST(Liveness, AProcessThatWasPausedHasNotStalled) {
  Liveness liveness(std::chrono::milliseconds(1000));
  const auto stalled = [&](double last_step, int ms) {
    return liveness.Stalled(Stats(true, last_step), {0, true}, At(ms)).has_value();
  };
  EXPECT_FALSE(stalled(1, 0));
  EXPECT_FALSE(stalled(1, 100));
  EXPECT_FALSE(stalled(1, 3'600'100));
  EXPECT_FALSE(stalled(1, 3'600'300));
  EXPECT_FALSE(stalled(1, 3'600'500));
  EXPECT_TRUE(stalled(1, 3'600'800));  // the step really is stuck
}

TEST(Liveness, SoDoesATaskThatDoesNotEnd) {
  Liveness liveness(std::chrono::milliseconds(1000));
  const auto stalled = [&](PromptPool::Progress prompts, int ms) {
    return liveness.Stalled(Stats(false, 1), prompts, At(ms));
  };
  EXPECT_FALSE(stalled({7, true}, 0).has_value());
  EXPECT_FALSE(stalled({8, true}, 200).has_value());
  for (const int ms : {400, 600, 800, 1000}) EXPECT_FALSE(stalled({8, true}, ms).has_value());
  EXPECT_EQ(stalled({8, true}, 1200), "no task that tokenises has ended for 1 s");
  EXPECT_FALSE(stalled({8, false}, 1400).has_value());
}

// The client hears why although the engine does not answer any more.
TEST(Liveness, AFrozenEngineTurnsHealthAndEndsStreams) {
  std::promise<void> stalled;
  server::ServerOptions options;
  options.step_timeout_seconds = 10;
  options.on_stall = [&] { stalled.set_value(); };
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Freeze();
  server.engine().set_stats(Stats(true, 1));
  std::atomic<bool> ended{false};
  std::thread time([&] {
    while (!ended) {
      server.clock().Advance(std::chrono::seconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(status.error_message().find("no step of the engine"), std::string::npos)
      << status.error_message();
  stalled.get_future().wait();
  ended = true;
  time.join();
}

// Nobody else would notice: the pump decides about everything else.
TEST(Liveness, TheListenerNoticesAPumpThatStops) {
  server::Metrics metrics;
  server::ServiceContext context(
      {}, [] { return std::chrono::steady_clock::now(); }, &metrics);
  class Stuck final : public server::PumpTarget {
   public:
    void Handle(Event) override { released.get_future().wait(); }
    void Tick(SteadyTime) override {}
    void Stop(const absl::Status&) override {}
    std::promise<void> released;
  };
  const auto stuck = std::make_shared<Stuck>();
  context.pump.SinkFor(stuck)->OnEvent(PrefillEvent{});
  while (context.PumpGoesOn()) std::this_thread::yield();
  stuck->released.set_value();
}

}  // namespace
}  // namespace folio::testing
