#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/channel.h"
#include "loadtest/load_test.h"
#include "loadtest/metrics.h"
#include "tests/client/fake_server.h"

namespace folio::loadtest {
namespace {

using folio::testing::AnswerScript;
using folio::testing::FakeServer;
using folio::testing::Script;

Options SmallLoad() {
  Options options;
  options.num_requests = 40;
  options.concurrency = 4;
  options.prompt_tokens = {{16, 1}, {64, 1}};
  options.output_tokens = {{4, 1}};
  options.timeout_seconds = 60;
  // The test machine may be slow; what is too silent has tests of its own.
  options.silence_slack_ms = 30000;
  return options;
}

TEST(LoadRun, ClosedLoopKeepsItsConcurrency) {
  FakeServer server;
  const auto result = RunLoadTest({server.Connect()}, SmallLoad());
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->records.size(), 40);
  std::vector<const CallRecord*> calls;
  for (const CallRecord& record : result->records) {
    EXPECT_TRUE(record.status.ok()) << record.status;
    EXPECT_EQ(record.token_ids.size(), 4);
    EXPECT_EQ(record.completed->usage().prompt_tokens(), record.spec.prompt_tokens);
    calls.push_back(&record);
  }
  EXPECT_LE(ComputeMetrics(calls, {}).max_concurrent, 4);
  EXPECT_TRUE(AllViolations(*result).empty());
  EXPECT_TRUE(result->server_idle_after_ms.has_value());
}

TEST(LoadRun, GoesOverAllItsConnections) {
  FakeServer server;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int n = 0; n < 3; ++n) {
    const auto channel = client::OpenChannel({.target = server.target()});
    ASSERT_TRUE(channel.ok()) << channel.status();
    channels.push_back(*channel);
  }
  const auto result = RunLoadTest(channels, SmallLoad());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(server.requests().size(), 40);
  EXPECT_EQ(server.peers().size(), 3);
}

TEST(LoadRun, OpenLoopDoesNotWaitForAnswers) {
  FakeServer server;
  // Nothing is ever answered; all requests are sent nevertheless, and end by their deadline.
  server.on_generate = [](const v1::GenerateRequest&) { return Script{{}, {}, true}; };
  Options options = SmallLoad();
  options.rate = 1000;
  options.timeout_seconds = 1;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->records.size(), 40);
  for (const CallRecord& record : result->records) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(record.status)) << record.status;
    EXPECT_GE(record.sent_seconds, record.scheduled_seconds);
  }
}

TEST(LoadRun, CancellationsReachTheServer) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "a b");
    script.events.pop_back();
    script.hang = true;
    return script;
  };
  Options options = SmallLoad();
  options.cancel_fraction = 1;
  options.max_cancel_delay_seconds = 0.05;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const CallRecord& record : result->records) {
    EXPECT_EQ(record.outcome(), Outcome::kCancelled) << record.status;
  }
  EXPECT_TRUE(server.WaitForCancel());
  EXPECT_TRUE(AllViolations(*result).empty());
}

TEST(LoadRun, ProbesRunBesideTheLoad) {
  FakeServer server;
  Options options = SmallLoad();
  options.num_requests.reset();
  options.duration_seconds = 1;
  options.probe_rate = 200;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  const nlohmann::ordered_json json = ResultToJson(*result, options);
  EXPECT_GT(json["probes"]["completed"], 0);
  EXPECT_GT(json["completed"], 0);
  EXPECT_TRUE(json["invariants"]["ok"]) << json["invariants"];
}

TEST(LoadRun, EqualAnswersPassTheGreedyVerification) {
  FakeServer server;
  Options options = SmallLoad();
  options.sampled_fraction = 0.5;
  options.verify_greedy = true;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->greedy->num_checked, 0);
  EXPECT_LT(result->greedy->num_checked, 40);
  EXPECT_TRUE(result->greedy->mismatches.empty());
}

TEST(LoadRun, DifferentAnswersAreFound) {
  FakeServer server;
  std::atomic<int> num_calls{0};
  server.on_generate = [&num_calls](const v1::GenerateRequest& request) {
    return AnswerScript(request, "a b c" + std::to_string(num_calls++));
  };
  Options options = SmallLoad();
  options.num_requests = 3;
  options.verify_greedy = true;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->greedy->mismatches.size(), 3);
  EXPECT_NE(result->greedy->mismatches[0].find("differ from token 2 on"), std::string::npos);
  EXPECT_EQ(AllViolations(*result).size(), 3);
}

TEST(LoadRun, BrokenStreamsAreViolations) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "a b");
    script.events.erase(script.events.begin() + 2);
    return script;
  };
  Options options = SmallLoad();
  options.num_requests = 1;
  const auto result = RunLoadTest({server.Connect()}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  // A missing number, and a missing token.
  EXPECT_EQ(AllViolations(*result).size(), 2);
}

TEST(LoadRun, PromptsAboveTheLimitAreRefusedBeforeTheRun) {
  FakeServer server;
  server.info.mutable_limits()->set_max_inline_prompt_bytes(100);
  const auto result = RunLoadTest({server.Connect()}, SmallLoad());
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
}

}  // namespace
}  // namespace folio::loadtest
