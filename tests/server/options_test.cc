#include "server/options.h"

#include <gtest/gtest.h>

#include <vector>

namespace folio::server {
namespace {

struct Parsed {
  ParseResult result;
  ServerOptions options;
  int exit_code = -1;
};

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "folio-server");
  Parsed parsed;
  parsed.result = ParseOptions(static_cast<int>(arguments.size()), arguments.data(),
                               &parsed.options, &parsed.exit_code);
  return parsed;
}

TEST(Options, DashesAndUnderscoresAreTheSame) {
  const Parsed parsed = Parse({"--model=/m_1", "--kv_bytes=1000", "--max-queued-requests", "5",
                               "--metrics_listen", "0.0.0.0:1_2", "--log_json"});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(parsed.options.engine.model_dir, "/m_1");
  EXPECT_EQ(parsed.options.engine.kv_bytes, 1000);
  EXPECT_EQ(parsed.options.engine.max_queued_requests, 5);
  EXPECT_EQ(parsed.options.metrics_listen, "0.0.0.0:1_2");
  EXPECT_TRUE(parsed.options.log_json);
}

TEST(Options, HelpAndVersionExitWithZero) {
  for (const char* flag : {"--help", "--version"}) {
    ::testing::internal::CaptureStdout();
    const Parsed parsed = Parse({flag});
    EXPECT_FALSE(::testing::internal::GetCapturedStdout().empty());
    EXPECT_EQ(parsed.result, ParseResult::kExit);
    EXPECT_EQ(parsed.exit_code, 0);
  }
}

TEST(Options, ABadFlagIsOneLineAndExitsWithOne) {
  const std::vector<std::vector<const char*>> bad = {{},
                                                     {"--model=/m", "--no-such-flag"},
                                                     {"--model=/m", "--threads=many"},
                                                     {"--model=/m", "--threads=-1"},
                                                     {"--model=/m", "--kv-dtype=fp64"},
                                                     {"--model=/m", "--max-queued-requests=0"},
                                                     {"--model=/m", "--log-level=loud"}};
  for (const auto& arguments : bad) {
    ::testing::internal::CaptureStderr();
    const Parsed parsed = Parse(arguments);
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(parsed.result, ParseResult::kExit);
    EXPECT_EQ(parsed.exit_code, 1);
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
    EXPECT_EQ(error.rfind("folio-server: ", 0), 0u) << error;
  }
}

}  // namespace
}  // namespace folio::server
