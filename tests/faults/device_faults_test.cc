// What memory and devices do to a server: rows 7 to 9, 17 and 20 of docs/faults.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/faulty_backend.h"
#include "tests/faults/whole_server.h"

namespace folio::testing {
namespace {

using ::testing::HasSubstr;

// A server on a device that fails when it is told to.
class OnDevice {
 public:
  explicit OnDevice(const server::ServerOptions& options = WholeOptions())
      : server_(WithFaults(options)) {}
  ~OnDevice() { faults_.Release(); }

  DeviceFaults& faults() { return faults_; }
  WholeServer& server() { return server_; }
  int num_failures() const { return num_failures_; }

 private:
  server::ServerOptions WithFaults(server::ServerOptions options) {
    options.engine = OnFaultyDevice(std::move(options.engine), &faults_);
    options.engine.on_device_failure = [this](const absl::Status&) { ++num_failures_; };
    return options;
  }

  DeviceFaults faults_;
  std::atomic<int> num_failures_{0};
  WholeServer server_;
};

TEST(Faults, DeviceOutOfMemory) {
  OnDevice device;
  const std::string before = AnswerOf(device.server(), Work(100, 10)).text;
  device.faults().full = true;
  const Answer refused = AnswerOf(device.server(), Work(100, 10));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("no room"));
  EXPECT_TRUE(DetailsOf(refused.status).retry.has_value());
  device.faults().full = false;
  EXPECT_EQ(AnswerOf(device.server(), Work(100, 10)).text, before);
  EXPECT_EQ(device.server().KvUsedWhenIdle(), 0);
  EXPECT_EQ(device.num_failures(), 0);
}

// At the start and in a request: an error, or less at a time.
TEST(Faults, HostOutOfMemory) {
  {
    server::ServerOptions options = WholeOptions();
    options.engine.kv_bytes = int64_t{1} << 50;
    WholeServer server(options, TestServer::Model::kNotLoaded);
    const absl::Status start = server.runner().LoadModel();
    EXPECT_EQ(start.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(start.message()), HasSubstr("GiB"));
    EXPECT_EQ(AnswerOf(server, Work(5, 5)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  server::ServerOptions options = WholeOptions();
  options.requests.max_memory_bytes = 100'000;
  WholeServer server(options);
  const Answer refused = AnswerOf(server, Work(40'000, 5));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(server.Metric(R"(folio_requests_rejected_total{reason="memory"})"), 1);
  EXPECT_TRUE(AnswerOf(server, Work(100, 5)).status.ok());
}

TEST(Faults, DeviceFault) {
  OnDevice device;
  Generate running(device.server().channel(), Work(5, 5000));
  while (!running.Next().has_delta()) {
  }
  device.faults().lost = true;
  const grpc::Status status = running.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("illegal memory access"));
  EXPECT_EQ(AnswerOf(device.server(), Work(5, 5)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // The process ends for it, once (server/main.cc).
  EXPECT_EQ(device.num_failures(), 1);
}

TEST(Faults, DeviceHang) {
  std::promise<void> stalled;
  server::ServerOptions options = WholeOptions();
  options.step_timeout_seconds = 10;
  options.on_stall = [&] { stalled.set_value(); };
  OnDevice device(options);
  WholeServer& server = device.server();
  Generate running(server.channel(), Work(5, 5000));
  while (!running.Next().has_delta()) {
  }
  device.faults().Hang();
  std::atomic<bool> ended{false};
  std::thread time([&] {
    while (!ended) {
      server.clock().Advance(std::chrono::seconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const grpc::Status status = running.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no step of the engine"));
  stalled.get_future().wait();
  ended = true;
  time.join();
  EXPECT_THAT(server.Get("/readyz"), HasSubstr(" 503 "));
  EXPECT_THAT(server.Get("/healthz"), HasSubstr(" 503 "));
}

TEST(Faults, NonFiniteLogits) {
  OnDevice device;
  const std::string before = AnswerOf(device.server(), Work(50, 10)).text;
  device.faults().not_finite = true;
  const Answer failed = AnswerOf(device.server(), Work(50, 10));
  EXPECT_EQ(failed.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(failed.text, "");
  device.server().WaitUntilIdle();
  EXPECT_EQ(device.server().Metric("folio_nonfinite_logits_total"), 1);
  device.faults().not_finite = false;
  EXPECT_EQ(AnswerOf(device.server(), Work(50, 10)).text, before);
}

TEST(Faults, DegenerateRequests) {
  WholeServer server;
  const auto field = [&](const v1::GenerateRequest& request) {
    const Answer answer = AnswerOf(server, request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return DetailsOf(answer.status).field();
  };
  EXPECT_EQ(field(v1::GenerateRequest()), "input");
  EXPECT_EQ(field(Work(5, 0)), "stopping.max_new_tokens");
  v1::GenerateRequest foreign = Work(5, 5);
  foreign.mutable_prompt_token_ids()->add_ids(1 << 30);
  EXPECT_EQ(field(foreign), "prompt_token_ids.ids[5]");
  // A prompt without text is BOS alone.
  v1::GenerateRequest empty = Work(0, 3);
  empty.set_prompt("");
  const Answer answer = AnswerOf(server, empty);
  EXPECT_EQ(field(empty), "prompt");

  v1::GenerateRequest stops = Work(50, 10);
  const Answer whole = AnswerOf(server, stops);
  stops.mutable_stopping()->add_stop(whole.text.substr(0, 1));
  const Answer stopped = AnswerOf(server, stops);
  EXPECT_TRUE(stopped.status.ok());
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.completed.finish_reason(), v1::Completed::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.completed.usage().completion_tokens(), 1);
}

// Answers are the same alone and beside others, whatever strategies those have.
TEST(Faults, MixedStrategiesInOneBatch) {
  server::ServerOptions options = WholeOptions();
  options.engine.max_running_requests = 16;
  WholeServer server(options);
  std::vector<v1::GenerateRequest> requests;
  for (int n = 0; n < 12; ++n) {
    v1::GenerateRequest& request = requests.emplace_back(Work(150 + 60 * n, 20));
    if (n % 3 == 1) request.mutable_strategy()->mutable_long_heads();
    if (n % 3 == 2) request.mutable_strategy()->mutable_lm_infinite();
  }
  std::vector<std::string> alone;
  for (const v1::GenerateRequest& request : requests) {
    const Answer answer = AnswerOf(server, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    alone.push_back(answer.text);
  }
  std::vector<std::unique_ptr<Generate>> together;
  for (const v1::GenerateRequest& request : requests) {
    together.push_back(std::make_unique<Generate>(server.channel(), request));
  }
  for (size_t n = 0; n < together.size(); ++n) {
    const Answer answer = ReadAll(together[n].get());
    EXPECT_EQ(answer.text, alone[n]) << n;
  }
}

}  // namespace
}  // namespace folio::testing
