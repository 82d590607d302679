#include "server/logging.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
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
  LogRpc({"Generate", "OK", "x\" code=INTERNAL", "full", 1.5});
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, HasSubstr(R"x("message":"grpc: bad \"frame\"\\x0afrom a peer (file.cc:7)"})x"));
  EXPECT_THAT(out, HasSubstr(R"x(id=\"x\\\" code=INTERNAL\" strategy=full seconds=1.500)x"));
}

}  // namespace
}  // namespace folio::server
