// How much of a client's calls is in the log.
#include "server/call_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SteadyTime At(double seconds) {
  return SteadyTime(std::chrono::hours(1)) +
         std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(seconds));
}

class CallLogTest : public ::testing::Test {
 protected:
  CallLogTest() {
    ::testing::internal::CaptureStdout();
    SetUpLogging("info", /*json=*/false);
  }
  ~CallLogTest() override {
    ::testing::internal::GetCapturedStdout();
    gpr_set_log_function(nullptr);
  }

  // `count` refused calls.
  void Flood(int count, const std::string& tenant, const std::string& client, SteadyTime now,
             const char* code = "RESOURCE_EXHAUSTED") {
    for (int n = 0; n < count; ++n) {
      log_.Write({.method = "Generate", .code = code, .tenant = tenant, .address = client}, now);
    }
  }
  // Lines since the last time.
  static int NumLines(const std::string& text, const std::string& with) {
    int count = 0;
    for (size_t at = text.find(with); at != std::string::npos; at = text.find(with, at + 1)) {
      ++count;
    }
    return count;
  }
  static std::string Written() {
    std::string text = ::testing::internal::GetCapturedStdout();
    ::testing::internal::CaptureStdout();
    return text;
  }

  CallLog log_{2};
};

TEST_F(CallLogTest, AFloodOfOneTenantIsCountedAndLeavesTheLogToOthers) {
  Flood(1000, "loud", "10.0.0.1", At(0));
  Flood(1, "quiet", "10.0.0.1", At(0));
  std::string text = Written();
  EXPECT_EQ(NumLines(text, "tenant=\"loud\""), 20);  // ten seconds' worth at once
  EXPECT_EQ(NumLines(text, "tenant=\"quiet\""), 1);
  EXPECT_EQ(log_.num_left_out(), 980);
  Flood(1000, "loud", "10.0.0.2", At(3));
  EXPECT_EQ(NumLines(Written(), "tenant=\"loud\""), 6);
}

TEST_F(CallLogTest, WhatWasLeftOutIsSaidOnceAfterAWhile) {
  log_.Report(At(0));
  Flood(1000, "loud", "10.0.0.1", At(1));
  log_.Report(At(2));
  EXPECT_THAT(Written(), Not(HasSubstr("not in the log")));
  log_.Report(At(10));
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("[warning] 980 calls of loud are not in the log, which has up to 2 a "
                              "second of each client"));
  EXPECT_EQ(NumLines(text, "\n"), 1);
  log_.Report(At(20));
  EXPECT_EQ(Written(), "");
}

TEST_F(CallLogTest, WithoutTenantsClientsAreAddressesOfWhichSomeAreKept) {
  for (int n = 0; n < 3000; ++n) Flood(21, "", absl::StrCat("10.0.0.", n), At(0));
  // Those beyond a thousand share what one may have.
  EXPECT_EQ(log_.num_left_out(), 1000 + 2000 * 21 - 20);
  // Those that are quiet are forgotten, others have their own again.
  log_.Report(At(60));
  Written();
  Flood(1, "", "10.0.7.1", At(60));
  EXPECT_EQ(NumLines(Written(), "code=RESOURCE_EXHAUSTED"), 1);
}

TEST_F(CallLogTest, FaultsOfTheServerAreNotHiddenByAFlood) {
  Flood(1000, "loud", "10.0.0.1", At(0));
  Written();
  Flood(1000, "loud", "10.0.0.1", At(0), "INTERNAL");
  EXPECT_EQ(NumLines(Written(), "code=INTERNAL"), 20);
}

TEST_F(CallLogTest, NothingIsLeftOutWithoutABound) {
  CallLog all(0);
  for (int n = 0; n < 500; ++n)
    all.Write({.method = "Generate", .code = "OK", .address = "10.0.0.1"}, At(0));
  EXPECT_EQ(NumLines(Written(), "method=Generate"), 500);
  EXPECT_EQ(all.num_left_out(), 0);
}

}  // namespace
}  // namespace folio::server
