// What the size of a document says before its text comes.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

v1::DocumentHeader Sized(uint64_t size_bytes) {
  v1::DocumentHeader header;
  header.set_document_id("book");
  header.set_upload_token(kUploadToken);
  header.set_size_bytes(size_bytes);
  return header;
}

grpc::Status Begin(TestServer* server, uint64_t size_bytes) {
  Upload upload(server->channel());
  upload.Header(Sized(size_bytes));
  return upload.Finish();
}

TEST(UploadSize, MoreThanADocumentMayHaveIsRefusedByTheHeader) {
  server::ServerOptions options;
  options.max_document_bytes = 10;
  TestServer server(options);
  for (const uint64_t size : {uint64_t{11}, ~uint64_t{0}}) {
    const grpc::Status status = Begin(&server, size);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).info.reason(), "DOCUMENT_TOO_LARGE");
    EXPECT_FALSE(DetailsOf(status).retry.has_value());
  }
  EXPECT_FALSE(server.engine().GetDocument("book").has_value());
}

TEST(UploadSize, MoreTokensThanADocumentMayHaveAreABadSize) {
  server::ServerOptions options;
  options.engine.max_context_tokens = 100;
  TestServer server(options);
  const grpc::Status status = Begin(&server, 101);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), "header.size_bytes");
  EXPECT_FALSE(server.engine().GetDocument("book").has_value());
}

TEST(UploadSize, WhatTheCacheCanNeverHoldIsRefusedForGood) {
  TestServer server;
  server.engine().RefuseDocumentSizes(absl::FailedPreconditionError("raise --kv-bytes"));
  const grpc::Status status = Begin(&server, 5);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "raise --kv-bytes");
  EXPECT_EQ(DetailsOf(status).info.reason(), "CAPACITY");
  EXPECT_FALSE(DetailsOf(status).retry.has_value());
  EXPECT_FALSE(server.engine().GetDocument("book").has_value());
}

TEST(UploadSize, AnUnknownOneIsNoReasonToRefuse) {
  TestServer server;
  server.engine().RefuseDocumentSizes(absl::FailedPreconditionError("not asked"));
  UploadWhole(&server, "book", "abc");
  EXPECT_EQ(server.engine().GetDocument("book")->state, DocumentState::kReady);
}

TEST(UploadSize, AnUploadThatGoesOnIsNotJudgedByTheStrategyOfItsHeader) {
  TestServer server;
  Upload first(server.channel());
  v1::DocumentHeader header = Sized(3);
  header.mutable_strategy()->mutable_lm_infinite();
  first.Header(header);
  EXPECT_TRUE(first.Next().has_created());
  server.engine().RefuseDocumentSizes(absl::FailedPreconditionError("full needs more"));
  Upload second(server.channel());
  second.Header(Sized(3));
  EXPECT_TRUE(second.Next().has_created());
  second.Chunk(0, "abc");
  second.FinishUpload(3);
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::ABORTED);  // taken over
}

TEST(UploadSize, OneThatFitsChangesNothing) {
  server::ServerOptions options;
  options.max_document_bytes = 3;
  TestServer server(options);
  Upload upload(server.channel());
  upload.Header(Sized(3));
  EXPECT_TRUE(upload.Next().has_created());
  upload.Chunk(0, "abc");
  upload.FinishUpload(3);
  EXPECT_TRUE(upload.Finish().ok());
}

}  // namespace
}  // namespace folio::testing
