#include "server/logging.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/log_sink.h"

namespace folio::server {
namespace {

using ::testing::HasSubstr;

// A logger whose lines go into a pipe.
class PipeLog {
 public:
  PipeLog() {
    EXPECT_EQ(pipe(ends_), 0);
    sink_ = std::make_shared<LogSink>(ends_[1]);
    logger_ = std::make_unique<spdlog::logger>("", sink_);
    logger_->set_pattern("%l %v");
  }
  ~PipeLog() {
    close(ends_[0]);
    close(ends_[1]);
  }
  spdlog::logger& logger() { return *logger_; }
  LogSink& sink() { return *sink_; }
  int writer() const { return ends_[1]; }
  std::string Read() {
    std::string text(1 << 20, ' ');
    text.resize(static_cast<size_t>(read(ends_[0], text.data(), text.size())));
    return text;
  }

 private:
  int ends_[2];
  std::shared_ptr<LogSink> sink_;
  std::unique_ptr<spdlog::logger> logger_;
};

TEST(LogSink, LinesThatNobodyReadsAreDroppedAndReported) {
  PipeLog log;
  const std::string text(1000, 'x');
  int lines = 0;
  for (; log.sink().dropped() < 5; ++lines) log.logger().info(text);
  EXPECT_GT(lines, 50);  // a pipe holds 64 KiB
  const std::string before = log.Read();
  EXPECT_EQ(before.find("dropped"), std::string::npos);
  EXPECT_EQ(before.size() % (text.size() + 6), 0u) << "whole lines";
  log.logger().info("later");
  EXPECT_EQ(log.Read(),
            "warning 5 log lines were dropped: nothing read what the server writes\ninfo later\n");
  log.logger().info("again");
  EXPECT_EQ(log.Read(), "info again\n");
  EXPECT_EQ(log.sink().dropped(), 5);
}

TEST(LogSink, AHalfWrittenLineIsFinishedBeforeTheNext) {
  PipeLog log;
  const std::string text(3 * PIPE_BUF, 'x');
  while (log.sink().dropped() == 0) log.logger().info(text);
  std::string all = log.Read();
  log.logger().info("later");
  all += log.Read();
  const size_t report = all.find("warning 1 log lines were dropped");
  ASSERT_NE(report, std::string::npos);
  EXPECT_EQ(report % (text.size() + 6), 0u) << "whole lines";
}

TEST(LogSink, WhoSharesThePipeStillWaits) {
  PipeLog log;
  EXPECT_EQ(fcntl(log.writer(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(LogText, ControlCharactersAndForeignBytesAreEscaped) {
  EXPECT_EQ(EscapeLogText("a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
  EXPECT_EQ(EscapeLogText("caf\xc3\xa9 \xc2\x9b \xff"), "caf\xc3\xa9 \\xc2\\x9b \\xff");
}

class StandardLog : public ::testing::Test {
 protected:
  ~StandardLog() override { gpr_set_log_function(nullptr); }
};

TEST_F(StandardLog, GrpcSpeaksInOurFormatAndCannotBreakLines) {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  ::testing::internal::CaptureStdout();
  SetUpLogging("info", /*json=*/true);
  gpr_log("file.cc", 7, GPR_LOG_SEVERITY_ERROR, "bad \"frame\"\nfrom %s", "a peer");
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, HasSubstr(R"x("message":"grpc: bad \"frame\"\\x0afrom a peer (file.cc:7)"})x"));
}

RpcRecord Everything() {
  return {.method = "Generate",
          .code = "CANCELLED",
          .reason = "CANCELLED",
          .request_id = "x\" code=INTERNAL\n",
          .tenant = "red",
          .document_id = "b\\",
          .strategy = "full",
          .trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
          .seconds = 1.5,
          .work = RpcRecord::Work{9, 5, 2, 0.25, 0.5, 0.125, 7}};
}

// The only line that is logged.
nlohmann::json JsonLine(const RpcRecord& record) {
  ::testing::internal::CaptureStdout();
  SetUpLogging("info", /*json=*/true);
  LogRpc(record);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  return nlohmann::json::parse(out);
}

TEST_F(StandardLog, AFinishedRpcIsAnObjectWithAMemberForEachField) {
  nlohmann::json line = JsonLine(Everything());
  EXPECT_TRUE(line.contains("time"));
  EXPECT_EQ(line["level"], "info");
  line.erase("time");
  line.erase("level");
  const nlohmann::json expected = {{"method", "Generate"},
                                   {"code", "CANCELLED"},
                                   {"reason", "CANCELLED"},
                                   {"request_id", "x\" code=INTERNAL\\x0a"},
                                   {"tenant", "red"},
                                   {"document_id", "b\\"},
                                   {"strategy", "full"},
                                   {"trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"},
                                   {"prompt_tokens", 9},
                                   {"cached_tokens", 5},
                                   {"completion_tokens", 2},
                                   {"queue_seconds", 0.25},
                                   {"prefill_seconds", 0.5},
                                   {"decode_seconds", 0.125},
                                   {"steps", 7},
                                   {"seconds", 1.5}};
  EXPECT_EQ(line, expected);
}

TEST_F(StandardLog, WhatIsEmptyIsLeftOut) {
  nlohmann::json line = JsonLine({.method = "Tokenize", .code = "OK"});
  EXPECT_EQ(line.size(), 5u) << line;
  EXPECT_EQ(line["seconds"], 0);
}

TEST_F(StandardLog, AClientCannotWriteFieldsOfItsOwn) {
  ::testing::internal::CaptureStdout();
  SetUpLogging("info", /*json=*/false);
  LogRpc(Everything());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr(R"x(request_id="x\" code=INTERNAL\n" tenant="red" document_id="b\\" )x"
                        "strategy=full trace_id=4bf92f3577b34da6a3ce929d0e0e4736 prompt_tokens=9 "
                        "cached_tokens=5 completion_tokens=2 queue_seconds=0.250 "
                        "prefill_seconds=0.500 decode_seconds=0.125 steps=7 seconds=1.500\n"));
}

TEST_F(StandardLog, LinesBelowTheLevelAreNotWritten) {
  ::testing::internal::CaptureStdout();
  SetUpLogging("warning", /*json=*/true);
  LogRpc(Everything());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace folio::server
