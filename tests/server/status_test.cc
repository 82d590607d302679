#include <gtest/gtest.h>

#include "engine/base/short_for_now.h"
#include "engine/runtime/shortage.h"
#include "server/status_mapping.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

struct Case {
  absl::StatusCode code;
  const char* reason;
  bool retry;
};

class EngineRefuses : public ::testing::TestWithParam<Case> {};

TEST_P(EngineRefuses, StatusReasonAndRetryReachTheClient) {
  TestServer server;
  server.engine().RefuseSubmit(absl::Status(GetParam().code, "because"));
  Generate call(server.channel(), Ask("hello"));
  const grpc::Status status = call.Finish();
  EXPECT_EQ(static_cast<int>(status.error_code()), static_cast<int>(GetParam().code));
  EXPECT_EQ(status.error_message(), "because");
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.info.reason(), GetParam().reason);
  EXPECT_EQ(details.info.domain(), "folio");
  ASSERT_EQ(details.retry.has_value(), GetParam().retry);
  if (GetParam().retry) {
    EXPECT_GE(details.retry->retry_delay().seconds(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codes, EngineRefuses,
    ::testing::Values(Case{absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", false},
                      Case{absl::StatusCode::kNotFound, "NOT_FOUND", false},
                      Case{absl::StatusCode::kFailedPrecondition, "CAPACITY", false},
                      Case{absl::StatusCode::kResourceExhausted, "QUEUE_FULL", true},
                      Case{absl::StatusCode::kUnavailable, "DRAINING", true},
                      Case{absl::StatusCode::kInternal, "INTERNAL", false}));

class EngineFails : public ::testing::TestWithParam<Case> {};

TEST_P(EngineFails, InTheMiddleOfAStream) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Emit(Delta("a"));
  server.engine().Emit(FailedEvent{absl::Status(GetParam().code, "because"), Phase::kDecode});
  const grpc::Status status = call.Finish();
  EXPECT_EQ(static_cast<int>(status.error_code()), static_cast<int>(GetParam().code));
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.info.reason(), GetParam().reason);
  EXPECT_EQ(details.info.metadata().at("phase"), "decode");
  EXPECT_EQ(details.retry.has_value(), GetParam().retry);
}

INSTANTIATE_TEST_SUITE_P(
    Codes, EngineFails,
    ::testing::Values(Case{absl::StatusCode::kCancelled, "CANCELLED", false},
                      Case{absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", false},
                      Case{absl::StatusCode::kNotFound, "NOT_FOUND", false},
                      Case{absl::StatusCode::kResourceExhausted, "KV_POOL_FULL", false},
                      Case{absl::StatusCode::kUnavailable, "NOT_SERVING", true},
                      Case{absl::StatusCode::kInternal, "INTERNAL", false}));

TEST(Status, TheRetryDelayFollowsTheQueue) {
  TestServer server;
  // Two requests that end 4 s apart: about one every 4 s.
  for (RequestId id : {1, 2}) {
    Generate call(server.channel(), Ask("hello"));
    server.engine().WaitForRequest(id);
    server.engine().Emit(Completed(1), id);
    EXPECT_TRUE(call.Finish().ok());
    if (id == 1) server.clock().Advance(std::chrono::seconds(4));
  }
  EngineStats stats;
  stats.waiting = 5;
  server.engine().set_stats(stats);
  server.engine().RefuseSubmit(absl::ResourceExhaustedError("full"));
  Generate call(server.channel(), Ask("hello"));
  const Details details = DetailsOf(call.Finish());
  ASSERT_TRUE(details.retry.has_value());
  EXPECT_EQ(details.retry->retry_delay().seconds(), 20);  // five in the queue
}

TEST(Status, TheCodeDecidesAboutRetryInfoUnlessTold) {
  const absl::Status full = ShortForNow("full");
  EXPECT_TRUE(DetailsOf(server::ToGrpcStatus(full)).retry.has_value());
  // Nothing that ends by itself makes room.
  EXPECT_FALSE(
      DetailsOf(server::ToGrpcStatus(absl::ResourceExhaustedError("full"))).retry.has_value());
  EXPECT_TRUE(DetailsOf(server::ToGrpcStatus(absl::UnavailableError("gone"))).retry.has_value());
  const grpc::Status never =
      server::ToGrpcStatus(full, {"DOCUMENT_TOO_LARGE", {}, std::chrono::milliseconds(0)});
  EXPECT_FALSE(DetailsOf(never).retry.has_value());
  const grpc::Status later = server::ToGrpcStatus(full, {"", {}, std::chrono::milliseconds(2500)});
  EXPECT_EQ(DetailsOf(later).retry->retry_delay().seconds(), 2);
  EXPECT_EQ(DetailsOf(later).retry->retry_delay().nanos(), 500000000);
  EXPECT_TRUE(server::ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(Status, ABoundThatIsReachedIsNamed) {
  TestServer server;
  const auto refused = [&](LimitOf of) {
    server.engine().RefuseSubmit(LimitReached(kQueuedPrefillTokens, of, "full"));
    Generate call(server.channel(), Ask("hello"));
    return DetailsOf(call.Finish());
  };
  const Details of_tenant = refused(LimitOf::kTenant);
  EXPECT_TRUE(of_tenant.retry.has_value());
  ASSERT_TRUE(of_tenant.quota.has_value());
  ASSERT_EQ(of_tenant.quota->violations_size(), 1);
  EXPECT_EQ(of_tenant.quota->violations(0).subject(), "tenant");
  EXPECT_EQ(of_tenant.quota->violations(0).description(), "queued_prefill_tokens");
  EXPECT_EQ(refused(LimitOf::kAll).quota->violations(0).subject(), "server");
  EXPECT_FALSE(DetailsOf(server::ToGrpcStatus(ShortForNow("full"))).quota.has_value());
}

TEST(Status, ADeadlineThatCannotBeMetIsToldWithTheEstimate) {
  TestServer server;
  absl::Status late = absl::FailedPreconditionError("too soon");
  late.SetPayload(kExpectedSecondsPayload, absl::Cord("12.5"));
  server.engine().RefuseSubmit(late);
  Generate call(server.channel(), Ask("hello"));
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.info.reason(), "DEADLINE_TOO_SOON");
  EXPECT_EQ(details.info.metadata().at("expected_seconds"), "12.5");
  EXPECT_TRUE(details.retry.has_value());
}

TEST(Status, AMessageHasTheFirstBadFieldAndHowManyMoreThereAre) {
  EXPECT_TRUE(server::BadFields({}).ok());
  EXPECT_EQ(server::BadField("a", "is 1").error_message(), "a: is 1");
  EXPECT_EQ(server::BadFields({{"a", "is 1"}, {"b", "is 2"}}).error_message(),
            "a: is 1 (and 1 other field)");
  const grpc::Status three = server::BadFields({{"a", "is 1"}, {"b", "is 2"}, {"c", "is 3"}});
  EXPECT_EQ(three.error_message(), "a: is 1 (and 2 other fields)");
  const Details details = DetailsOf(three);
  ASSERT_EQ(details.bad_request->field_violations_size(), 3);
  EXPECT_EQ(details.bad_request->field_violations(2).field(), "c");
  EXPECT_EQ(details.bad_request->field_violations(2).description(), "is 3");
}

// gRPC's own retries wait as long as a caller is told to.
TEST(Status, TheTrailerForRetriesSaysWhatRetryInfoSays) {
  TestServer server;
  server.engine().RefuseSubmit(absl::ResourceExhaustedError("full"));
  Generate full(server.channel(), Ask("hello"));
  const auto delay = DetailsOf(full.Finish()).retry->retry_delay();
  EXPECT_EQ(full.Trailer("grpc-retry-pushback-ms"), std::to_string(delay.seconds() * 1000));
  server.engine().RefuseSubmit(absl::FailedPreconditionError("too large"));
  Generate never(server.channel(), Ask("hello"));
  EXPECT_FALSE(DetailsOf(never.Finish()).retry.has_value());
  EXPECT_EQ(never.Trailer("grpc-retry-pushback-ms"), "");
}

TEST(Status, CodesHaveNames) {
  EXPECT_STREQ(server::CodeName(grpc::StatusCode::OK), "OK");
  EXPECT_STREQ(server::CodeName(grpc::StatusCode::DEADLINE_EXCEEDED), "DEADLINE_EXCEEDED");
  EXPECT_STREQ(server::CodeName(grpc::StatusCode::UNAVAILABLE), "UNAVAILABLE");
  EXPECT_STREQ(server::CodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(server::CodeName(static_cast<grpc::StatusCode>(99)), "UNKNOWN");
}

}  // namespace
}  // namespace folio::testing
