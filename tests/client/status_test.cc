#include "client/status.h"

#include <gtest/gtest.h>

#include "client/backoff.h"
#include "client/cli/exit_code.h"
#include "google/rpc/error_details.pb.h"
#include "tests/client/fake_server.h"

namespace folio::client {
namespace {

using folio::testing::RichStatus;

google::rpc::RetryInfo RetryAfter(int64_t seconds, int32_t nanos) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(seconds);
  info.mutable_retry_delay()->set_nanos(nanos);
  return info;
}

TEST(Status, ErrorLineNamesFieldAndRetryDelay) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field("long_heads.chunk_size");
  violation->set_description("24 is not a multiple of the page size 16");
  const google::rpc::RetryInfo retry = RetryAfter(2, 0);
  const absl::Status status = FromGrpcStatus(
      RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "invalid request", {&bad, &retry}));
  EXPECT_EQ(FormatError(status),
            "INVALID_ARGUMENT: long_heads.chunk_size: 24 is not a multiple of the page size 16 "
            "(retry in 2 s)");
}

TEST(Status, ErrorLineJoinsSeveralViolations) {
  google::rpc::BadRequest bad;
  for (const char* field : {"top_p", "min_p"}) {
    bad.add_field_violations()->set_field(field);
    bad.mutable_field_violations()->rbegin()->set_description("out of range");
  }
  const auto status = FromGrpcStatus(RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "", {&bad}));
  EXPECT_EQ(FormatError(status), "INVALID_ARGUMENT: top_p: out of range; min_p: out of range");
}

TEST(Status, ErrorLineShowsReasonWithoutViolations) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUEUE_FULL");
  const google::rpc::RetryInfo retry = RetryAfter(1, 500000000);
  const auto status = FromGrpcStatus(
      RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "64 requests wait", {&info, &retry}));
  EXPECT_EQ(FormatError(status),
            "RESOURCE_EXHAUSTED: 64 requests wait [QUEUE_FULL] (retry in 1.5 s)");
  EXPECT_EQ(ErrorReason(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelay(status), absl::Milliseconds(1500));
}

TEST(Status, ErrorLineHasNoControlCharacters) {
  EXPECT_EQ(FormatError(absl::InternalError("two\nlines\x1b[2J")), "INTERNAL: two lines [2J");
  EXPECT_EQ(FormatError(absl::CancelledError("")), "CANCELLED");
  EXPECT_EQ(FormatError(absl::CancelledError("CANCELLED")), "CANCELLED");
}

TEST(Status, UnreadableDetailsKeepCodeAndMessage) {
  const auto status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "no document x", "\xff\xff"));
  EXPECT_EQ(FormatError(status), "NOT_FOUND: no document x");
  EXPECT_FALSE(RetryDelay(status).has_value());
}

TEST(Status, RetryDelayDoublesUpToItsLimitAndObeysTheServer) {
  const RetryPolicy policy{.initial_delay = absl::Seconds(1), .max_delay = absl::Seconds(3)};
  const absl::Status plain = absl::UnavailableError("");
  EXPECT_EQ(RetryDelayFor(policy, 1, plain), absl::Seconds(1));
  EXPECT_EQ(RetryDelayFor(policy, 2, plain), absl::Seconds(2));
  EXPECT_EQ(RetryDelayFor(policy, 3, plain), absl::Seconds(3));
  EXPECT_EQ(RetryDelayFor(policy, 30, plain), absl::Seconds(3));
  const google::rpc::RetryInfo retry = RetryAfter(7, 0);
  const auto asked = FromGrpcStatus(RichStatus(grpc::StatusCode::UNAVAILABLE, "", {&retry}));
  EXPECT_EQ(RetryDelayFor(policy, 1, asked), absl::Seconds(7));
}

TEST(Status, WaitEndsWhenItIsCancelled) {
  CancelSource source;
  source.request_stop();
  EXPECT_FALSE(WaitFor(absl::Hours(1), source.get_token()));
  EXPECT_TRUE(WaitFor(absl::ZeroDuration(), CancelToken()));
}

TEST(Status, ExitCodesFollowTheStatus) {
  EXPECT_EQ(cli::ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(cli::ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(cli::ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(cli::ExitCodeOf(cli::AsFileError(absl::NotFoundError(""))), 3);
  EXPECT_EQ(cli::ExitCodeOf(absl::NotFoundError("")), 4);
  EXPECT_EQ(cli::ExitCodeOf(absl::UnavailableError("")), 5);
  EXPECT_EQ(cli::ExitCodeOf(absl::ResourceExhaustedError("")), 6);
  EXPECT_EQ(cli::ExitCodeOf(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(cli::ExitCodeOf(absl::FailedPreconditionError("")), 8);
}

}  // namespace
}  // namespace folio::client
