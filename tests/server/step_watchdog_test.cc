#include "server/step_watchdog.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using server::StepHeartbeat;

EngineStats Stats(bool busy, double last_step) {
  EngineStats stats;
  stats.busy = busy;
  stats.last_step_unix_seconds = last_step;
  return stats;
}

TEST(StepHeartbeat, OnlyABusyEngineWithoutStepsStalls) {
  StepHeartbeat heartbeat(std::chrono::milliseconds(1000));
  const SteadyTime start{};
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  EXPECT_FALSE(heartbeat.Stalled(Stats(true, 1), at(0)));
  EXPECT_FALSE(heartbeat.Stalled(Stats(true, 1), at(999)));
  EXPECT_FALSE(heartbeat.Stalled(Stats(true, 2), at(1500)));  // a step has ended
  EXPECT_FALSE(heartbeat.Stalled(Stats(true, 2), at(2499)));
  EXPECT_TRUE(heartbeat.Stalled(Stats(true, 2), at(2500)));
  EXPECT_FALSE(heartbeat.Stalled(Stats(false, 2), at(9000)));  // idle: nothing is expected
  EXPECT_FALSE(heartbeat.Stalled(Stats(true, 2), at(9500)));
}

TEST(StepWatchdog, AStalledStepTurnsHealthAndEndsStreams) {
  std::promise<void> stalled;
  server::ServerOptions options;
  options.step_timeout_seconds = 1;
  options.on_stall = [&] { stalled.set_value(); };
  TestServer server(options, TestServer::Model::kNotLoaded);
  server.Load();
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_prompt("abc");
  auto stream = v1::Inference::NewStub(server.channel())->Generate(&context, request);
  server.engine().WaitForRequest();
  server.engine().set_stats(Stats(true, 1));
  v1::GenerateEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stalled.get_future().wait();
}

}  // namespace
}  // namespace folio::testing
