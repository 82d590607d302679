#include "client/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/client/fake_server.h"

namespace folio::client {
namespace {

using folio::testing::AnswerScript;
using folio::testing::FakeServer;
using folio::testing::Script;
using ::testing::HasSubstr;

absl::Status Ask(Client& client) {
  v1::GenerateRequest request;
  request.set_prompt("hello");
  return client.Generate(request, {}, [](const v1::GenerateEvent&) {});
}

TEST(Channel, CallsGoToTheServersThatServe) {
  FakeServer stopping;
  FakeServer serving;
  stopping.SetServing(false);
  const auto client =
      Client::Connect({.target = absl::StrCat("ipv4:", stopping.target(), ",", serving.target())});
  ASSERT_TRUE(client.ok()) << client.status();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Ask(**client).ok());
  EXPECT_EQ(stopping.requests().size(), 0);
  EXPECT_EQ(serving.requests().size(), 20);
}

TEST(Channel, AServerThatDoesNotServeIsNotReady) {
  FakeServer loading;
  loading.SetServing(false);
  const auto client =
      Client::Connect({.target = loading.target(), .timeout = absl::Milliseconds(300)});
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_THAT(client.status().message(), HasSubstr("its model is loading"));
}

TEST(Channel, ARefusedCallIsSentAgain) {
  FakeServer server;
  std::atomic<int> num_calls{0};
  server.on_generate = [&num_calls](const v1::GenerateRequest& request) {
    if (++num_calls < 4) return Script{{}, {grpc::StatusCode::UNAVAILABLE, "draining"}, false};
    return AnswerScript(request, "good day");
  };
  const auto client = Client::Connect({.target = server.target()});
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = Ask(**client);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(num_calls.load(), 4);
}

TEST(Channel, ARefusalIsGivenBackAfterFourAttempts) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest&) {
    return Script{{}, {grpc::StatusCode::UNAVAILABLE, "draining"}, false};
  };
  const auto client = Client::Connect({.target = server.target()});
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = Ask(**client);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(server.requests().size(), 4);
}

}  // namespace
}  // namespace folio::client
