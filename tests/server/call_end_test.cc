// What is kept of calls that are done.
#include "server/call_end.h"

#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "server/logging.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class CallEndTest : public ::testing::Test {
 protected:
  CallEndTest() {
    ::testing::internal::CaptureStdout();
    server::SetUpLogging("info", /*json=*/true);
  }
  ~CallEndTest() override { gpr_set_log_function(nullptr); }

  // The line of the only call of a method. Ends the server.
  nlohmann::json LineOf(const std::string& method) {
    server_.runner().Drain([] { return false; });
    server_.Stop();
    std::istringstream lines(::testing::internal::GetCapturedStdout());
    nlohmann::json found;
    for (std::string text; std::getline(lines, text);) {
      const nlohmann::json line = nlohmann::json::parse(text);
      if (line.value("method", "") != method) continue;
      EXPECT_TRUE(found.is_null()) << text;
      found = line;
    }
    return found;
  }
  void Pass(int ms) { server_.clock().Advance(std::chrono::milliseconds(ms)); }

  TestServer server_;
};

TEST_F(CallEndTest, AnAnswerIsLoggedWithItsTokensAndTimes) {
  UploadWhole(&server_, "book", "abc");
  v1::GenerateRequest request = AskDocument("book", "why");
  request.set_request_id("mine");
  Generate call(server_.channel(), request);
  server_.engine().WaitForRequest();
  const uint64_t prompt_tokens = call.Next().accepted().prompt_tokens();
  Pass(250);
  server_.engine().Emit(PrefillEvent{9, 5, 9});
  call.Next();
  Pass(500);
  server_.engine().Emit(Delta("a"));
  call.Next();
  Pass(125);
  server_.engine().Emit(Delta("b"));
  call.Next();
  CompletedEvent completed = Completed(2);
  completed.usage.cached_tokens = 5;
  completed.scheduling.num_steps = 3;
  server_.engine().Emit(completed);
  EXPECT_TRUE(call.Finish().ok());
  const nlohmann::json line = LineOf("Generate");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_FALSE(line.contains("reason"));
  EXPECT_EQ(line["request_id"], "mine");
  EXPECT_EQ(line["document_id"], "book");
  EXPECT_EQ(line["strategy"], "full");
  EXPECT_EQ(line["prompt_tokens"], prompt_tokens);
  EXPECT_EQ(line["cached_tokens"], 5);
  EXPECT_EQ(line["completion_tokens"], 2);
  EXPECT_EQ(line["queue_seconds"], 0.25);
  EXPECT_EQ(line["prefill_seconds"], 0.5);
  EXPECT_EQ(line["decode_seconds"], 0.125);
  EXPECT_EQ(line["steps"], 3);
  EXPECT_EQ(line["seconds"], 0.875);
}

TEST_F(CallEndTest, ARefusedOneIsLoggedWithItsReason) {
  Generate call(server_.channel(), AskDocument("other", "why"));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  const nlohmann::json line = LineOf("Generate");
  EXPECT_EQ(line["code"], "NOT_FOUND");
  EXPECT_EQ(line["reason"], "DOCUMENT_NOT_FOUND");
  EXPECT_EQ(line["document_id"], "other");
  EXPECT_EQ(line["request_id"], call.Trailer("x-request-id"));
  EXPECT_EQ(line["completion_tokens"], 0);
  EXPECT_EQ(line["queue_seconds"], 0);
}

TEST_F(CallEndTest, AnUploadIsLoggedWithItsDocument) {
  UploadWhole(&server_, "book", "abc");
  const nlohmann::json line = LineOf("UploadDocument");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["document_id"], "book");
  EXPECT_EQ(line["strategy"], "full");
  EXPECT_FALSE(line["request_id"].get<std::string>().empty());
}

}  // namespace
}  // namespace folio::testing
