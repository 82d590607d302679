#include "server/trace_context.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/server/test_server.h"

namespace folio::server {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kGood = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContext, TheExampleOfTheStandardIsRead) {
  const auto trace = ParseTraceparent(kGood);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->trace_id, kTrace);
  EXPECT_EQ(trace->parent_id, kParent);
  EXPECT_TRUE(trace->sampled);
  EXPECT_FALSE(ParseTraceparent("00-" + kTrace + "-" + kParent + "-00")->sampled);
  EXPECT_FALSE(ParseTraceparent("00-" + kTrace + "-" + kParent + "-fe")->sampled);
  EXPECT_TRUE(ParseTraceparent("00-" + kTrace + "-" + kParent + "-0b")->sampled);
}

TEST(TraceContext, LaterVersionsMayHaveMoreBehindIt) {
  EXPECT_TRUE(ParseTraceparent("cc" + kGood.substr(2)).has_value());
  EXPECT_TRUE(ParseTraceparent("cc" + kGood.substr(2) + "-what-the-future-will-be").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + kGood.substr(2) + ".what").has_value());
  EXPECT_FALSE(ParseTraceparent(kGood + "-what").has_value());
}

TEST(TraceContext, WhatIsNotOneIsIgnored) {
  const std::string zeros(32, '0');
  for (const std::string& bad :
       {std::string(), std::string("00"), kGood.substr(1), kGood + "0", kGood + " ",
        "ff" + kGood.substr(2), "0G" + kGood.substr(2), "00-" + zeros + "-" + kParent + "-01",
        "00-" + kTrace + "-" + zeros.substr(16) + "-01", "00-" + kTrace + "-" + kParent + "-0g",
        "00_" + kGood.substr(3), "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",
        std::string(55, '-'), std::string(100000, 'a')}) {
    EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad.substr(0, 60);
  }
}

// The trailer of a call with these headers.
std::string Answered(const std::vector<std::string>& headers) {
  testing::TestServer server;
  const auto stub = v1::Control::NewStub(server.channel());
  grpc::ClientContext context;
  for (const std::string& header : headers) context.AddMetadata("traceparent", header);
  v1::ServerInfo info;
  EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  return testing::TrailerOf(context, "traceparent");
}

TEST(TraceContext, TheClientGetsItsTraceBackWithTheSpanOfTheCall) {
  const std::string trailer = Answered({kGood});
  const auto trace = ParseTraceparent(trailer);
  ASSERT_TRUE(trace.has_value()) << trailer;
  EXPECT_EQ(trace->trace_id, kTrace);
  EXPECT_NE(trace->parent_id, kParent);
  EXPECT_TRUE(trace->sampled);
}

TEST(TraceContext, ACallWithoutOneOrWithTwoIsInNone) {
  EXPECT_EQ(Answered({}), "");
  EXPECT_EQ(Answered({"00-nonsense"}), "");
  EXPECT_EQ(Answered({kGood, kGood}), "");
}

TEST(TraceContext, StreamsSayItToo) {
  testing::TestServer server;
  const auto stub = v1::Inference::NewStub(server.channel());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kGood);
  const auto reader = stub->Generate(&context, testing::Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Emit(testing::Completed(1));
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ParseTraceparent(testing::TrailerOf(context, "traceparent"))->trace_id, kTrace);
}

}  // namespace
}  // namespace folio::server
