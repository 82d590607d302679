// What a server says of itself when it gets SIGQUIT.
#include "server/state_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Lines = std::vector<std::string>;

TEST(StateReport, SaysWhetherTheServerIsLoadingServingOrDraining) {
  TestServer server({}, TestServer::Model::kNotLoaded);
  EXPECT_THAT(server.runner().DescribeState()[0], HasSubstr(": loading, up 0.0 s"));
  server.Load();
  server.clock().Advance(std::chrono::seconds(90));
  EXPECT_THAT(server.runner().DescribeState()[0], HasSubstr(": serving, up 90.0 s"));
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  server.engine().WaitForDrain();
  EXPECT_THAT(server.runner().DescribeState()[0], HasSubstr(": draining, up "));
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  drain.join();
}

TEST(StateReport, DescribesTheCallsThatRunWithoutTheirText) {
  TestServer server;
  UploadWhole(&server, "book", "a chapter");
  v1::GenerateRequest request = AskDocument("book", "a question");
  request.set_request_id("mine");
  request.mutable_stopping()->set_max_new_tokens(30);
  Generate call(server.channel(), request, std::chrono::hours(1));
  server.engine().WaitForRequest();
  const uint64_t prompt_tokens = call.Next().accepted().prompt_tokens();
  server.engine().Emit(PrefillEvent{9, 3, 7});
  call.Next();
  server.clock().Advance(std::chrono::seconds(5));
  server.engine().Emit(Delta("an answer"));
  call.Next();
  const Lines lines = server.runner().DescribeState();
  EXPECT_THAT(lines.back(),
              ContainsRegex(absl::StrCat(
                  "^call 'mine': Generate of .*, document 'book', full; is answered, "
                  "5\\.0 s old; prompt 4 of ",
                  prompt_tokens, " tokens computed, answer 1 of at most 30; deadline in 3[56]")));
  for (const char* text : {"chapter", "question", "an answer"}) {
    EXPECT_THAT(lines, Each(Not(HasSubstr(text))));
  }
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

// Numbers as the engine last gave them: nothing waits for it.
TEST(StateReport, ComesFromAnEngineThatIsStuckInAStep) {
  TestServer server;
  EngineStats stats;
  stats.busy = true;
  stats.running = 2;
  stats.waiting = 5;
  stats.waiting_for_memory = 3;
  stats.waiting_prefill_tokens = 700;
  stats.steps = 41;
  stats.step_seconds = 0.25;
  stats.step_answers = 2;
  stats.step_prompt_tokens = 64;
  stats.kv_used_bytes = 1000;
  stats.kv_reserved_bytes = 1500;
  stats.kv_capacity_bytes = 9000;
  const auto ago = std::chrono::system_clock::now() - std::chrono::seconds(100);
  stats.last_step_unix_seconds = std::chrono::duration<double>(ago.time_since_epoch()).count();
  server.engine().set_stats(stats);
  server.engine().Freeze();
  const Lines lines = server.runner().DescribeState();
  EXPECT_THAT(lines,
              Contains(ContainsRegex("^threads: engine in a step for 10[0-9]\\.[0-9] s; "
                                     "event pump .* ago; listener .*; prompt pool idle, 0")));
  EXPECT_THAT(lines,
              Contains("last step: 0.250000 s for 2 answers and 64 tokens of prompts; 41 steps "
                       "in all"));
  EXPECT_THAT(lines, Contains("requests: 2 run, 5 wait (3 for memory, 0 for a document) with 700 "
                              "tokens of prompts, 0 are being read"));
  EXPECT_THAT(lines, Contains("KV cache, bytes: 1000 of 9000 used on the device, 1500 reserved"));
  EXPECT_THAT(lines, Contains(StartsWith("documents: 0 uploading, ")));
  EXPECT_THAT(lines, Contains(StartsWith("memory, bytes: 0 of ")));
  EXPECT_THAT(lines, Contains(StartsWith("connections: 0 of ")));
}

TEST(StateReport, HasABoundedNumberOfCalls) {
  server::Metrics metrics;
  server::ServiceContext context(
      {}, [] { return std::chrono::steady_clock::now(); }, &metrics);
  std::vector<std::unique_ptr<server::RunningCall>> calls;
  for (int n = 0; n < 205; ++n) {
    calls.push_back(context.calls.Add({"Generate", "10.0.0.1", "acme"}, {}));
    calls.back()->SetRequestId(absl::StrCat("call-", n));
  }
  const Lines lines = server::DescribeState(&context, nullptr, {});
  EXPECT_THAT(lines, Contains(HasSubstr("call 'call-0': Generate of 10.0.0.1, tenant 'acme';")));
  EXPECT_THAT(lines, Contains(HasSubstr("'call-199'")));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("'call-200'"))));
  EXPECT_EQ(lines.back(), "and 5 later calls");
}

}  // namespace
}  // namespace folio::testing
