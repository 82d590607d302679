// What requests may hold outside the engine, all together.
#include <gtest/gtest.h>

#include "server/memory_budget.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

server::ServerOptions WithMemory(int64_t bytes) {
  server::ServerOptions options;
  options.requests.max_memory_bytes = bytes;
  return options;
}

void ExpectRefused(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "REQUEST_MEMORY");
}

TEST(MemoryBudget, SharesAreGivenBack) {
  server::MemoryBudget budget(100);
  {
    auto first = budget.Take(60);
    ASSERT_TRUE(first.has_value());
    EXPECT_FALSE(budget.Take(41).has_value());
    EXPECT_FALSE(first->GrowTo(101));
    EXPECT_TRUE(first->GrowTo(100));
    EXPECT_EQ(budget.used(), 100);
    first->ShrinkTo(10);
    const server::MemoryBudget::Share moved = *std::move(first);
    EXPECT_EQ(budget.used(), 10);
    EXPECT_EQ(moved.bytes(), 10);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(RequestMemory, PromptsTogetherHaveALimit) {
  TestServer server(WithMemory(37 << 10));
  // Of each about 27 KiB while it is tokenised, and 10 KiB while it runs.
  const std::string text(2 << 10, 'x');
  Generate first(server.channel(), Ask(text));
  server.engine().WaitForRequest(1);
  Generate second(server.channel(), Ask(text));
  server.engine().WaitForRequest(2);
  Generate third(server.channel(), Ask(text));
  const grpc::Status refused = third.Finish();
  ExpectRefused(refused);
  EXPECT_TRUE(DetailsOf(refused).retry.has_value());
  server.engine().Emit(Completed(1), 1);
  EXPECT_TRUE(first.Finish().ok());
  // The server lets go of it a little after the client has its status.
  for (;;) {
    Generate again(server.channel(), Ask(text));
    if (again.Next().has_accepted()) {
      server.engine().Emit(Completed(1), 3);
      EXPECT_TRUE(again.Finish().ok());
      break;
    }
    ExpectRefused(again.Finish());
  }
  server.engine().Emit(Completed(1), 2);
  EXPECT_TRUE(second.Finish().ok());
}

TEST(RequestMemory, WhatIsNeverEnoughIsNotWorthATry) {
  TestServer server(WithMemory(1000));
  Generate call(server.channel(), Ask(std::string(1000, 'x')));
  const grpc::Status status = call.Finish();
  ExpectRefused(status);
  EXPECT_FALSE(DetailsOf(status).retry.has_value());
}

TEST(RequestMemory, TokenizeCountsItsAnswer) {
  TestServer server(WithMemory(10000));
  const auto stub = v1::Text::NewStub(server.channel());
  const auto tokenize = [&](size_t bytes) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    v1::TokenizeResponse response;
    request.set_text(std::string(bytes, 'x'));
    return stub->Tokenize(&context, request, &response);
  };
  EXPECT_TRUE(tokenize(400).ok());
  ExpectRefused(tokenize(500));
}

TEST(RequestMemory, PartsOfUploadsCount) {
  TestServer server(WithMemory(8000));
  Upload upload(server.TcpChannel());
  upload.Header("book");
  upload.Chunk(0, std::string(4000, 'x'));
  ExpectRefused(upload.Finish());
}

// A text without a space waits for its end, whatever it holds until then.
TEST(RequestMemory, TextThatCannotBeCutCounts) {
  TestServer server(WithMemory(100'000));
  Upload upload(server.TcpChannel());
  upload.Header("book");
  for (uint64_t offset = 0; offset < 40000; offset += 1000) {
    upload.Chunk(offset, std::string(1000, 'x'));
    v1::UploadDocumentEvent event;
    do {
      event = upload.Next();
    } while (event.has_created());
    if (!event.has_ack()) break;
  }
  ExpectRefused(upload.Finish());
  server.engine().WaitForState("book", DocumentState::kFailed);
}

TEST(RequestMemory, PartsOfScoresCountUntilTheyAreScored) {
  TestServer server(WithMemory(20000));
  const auto stub = v1::Inference::NewStub(server.TcpChannel());
  grpc::ClientContext context;
  const auto stream = stub->Score(&context);
  v1::ScoreRequest request;
  request.mutable_header()->set_per_token(true);
  stream->Write(request);
  const auto fill = [&request](int count) {
    request.Clear();
    for (int n = 0; n < count; ++n) request.mutable_token_ids()->add_ids(3);
  };
  v1::ScoreEvent event;
  for (int i = 0; i < 20; ++i) {
    fill(500);
    stream->Write(request);
    do {
      ASSERT_TRUE(stream->Read(&event));
    } while (!event.has_tokens());
  }
  fill(5000);
  stream->Write(request);
  stream->WritesDone();
  while (stream->Read(&event)) {
  }
  ExpectRefused(stream->Finish());
}

}  // namespace
}  // namespace folio::testing
