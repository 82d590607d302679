// The id of a Generate call comes back with its status.
#include "server/request_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using ::testing::StartsWith;

constexpr char kKey[] = "x-request-id";

v1::GenerateRequest AskAs(const std::string& id) {
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id(id);
  return request;
}

TEST(RequestId, ComesBackWithSuccess) {
  TestServer server;
  Generate call(server.channel(), AskAs("mine"));
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.Trailer(kKey), "mine");
}

TEST(RequestId, ComesBackWithEveryRefusal) {
  TestServer server({}, TestServer::Model::kNotLoaded);
  Generate loading(server.channel(), AskAs("mine"));
  EXPECT_EQ(loading.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(loading.Trailer(kKey), "mine");
  server.Load();
  v1::GenerateRequest bad = AskAs("bad");
  bad.mutable_sampling()->set_temperature(-1);
  Generate invalid(server.channel(), bad);
  EXPECT_EQ(invalid.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(invalid.Trailer(kKey), "bad");
  server.engine().RefuseSubmit(absl::ResourceExhaustedError("full"));
  Generate full(server.channel(), AskAs("full"));
  EXPECT_EQ(full.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(full.Trailer(kKey), "full");
}

TEST(RequestId, ComesBackWithAFailure) {
  TestServer server;
  Generate call(server.channel(), AskAs("mine"));
  server.engine().WaitForRequest();
  server.engine().Emit(FailedEvent{absl::InternalError("because"), Phase::kDecode});
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(call.Trailer(kKey), "mine");
}

TEST(RequestId, OfARequestThatIsTooLongToBeReadAtOnceComesBackToo) {
  TestServer server;
  v1::GenerateRequest request = AskAs("long-1");
  request.set_prompt(std::string(100'000, 'x'));
  Generate call(server.channel(), request);
  EXPECT_EQ(call.Next().request_id(), "long-1");
  server.engine().WaitForRequest(1);
  server.engine().Emit(Completed(1), 1);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.Trailer(kKey), "long-1");
  request.mutable_sampling()->set_temperature(-1);
  Generate refused(server.channel(), request);
  EXPECT_EQ(refused.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.Trailer(kKey), "long-1");
}

TEST(RequestId, OneThatTheServerMadeUpComesBackToo) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  const std::string id = call.Next().request_id();
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_THAT(id, StartsWith("req-"));
  EXPECT_EQ(call.Trailer(kKey), id);
}

// C0, DEL and C1, which metadata, logs and terminals take for something else.
TEST(RequestId, ControlCharactersAreRefusedAndDoNotComeBack) {
  TestServer server;
  for (const char* id : {"a\nb", "a\x1b[31m", "\x7f", "a\xc2\x85"}) {
    Generate call(server.channel(), AskAs(id));
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(status).field(), "request_id");
    EXPECT_THAT(call.Trailer(kKey), StartsWith("req-"));
  }
  Generate zero(server.channel(), AskAs(std::string("a\0b", 3)));
  EXPECT_EQ(DetailsOf(zero.Finish()).field(), "request_id");
}

// Metadata is ASCII.
TEST(RequestId, OtherLanguagesStayInTheEvents) {
  TestServer server;
  Generate call(server.channel(), AskAs("Größe"));
  EXPECT_EQ(call.Next().request_id(), "Größe");
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.Trailer(kKey), "");
}

}  // namespace
}  // namespace folio::testing
