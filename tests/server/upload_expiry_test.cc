// Uploads that nobody goes on with.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

std::optional<v1::Document> Find(TestServer* server, const std::string& id) {
  const auto stub = v1::Documents::NewStub(server->channel());
  grpc::ClientContext context;
  v1::GetDocumentRequest request;
  request.set_document_id(id);
  v1::Document document;
  if (!stub->GetDocument(&context, request, &document).ok()) return std::nullopt;
  return document;
}

void WaitUntilGone(TestServer* server, const std::string& id) {
  while (Find(server, id).has_value()) std::this_thread::yield();
}

TEST(UploadExpiry, AnUploadWithoutABytePasses) {
  server::ServerOptions options;
  options.requests.upload_expiry_seconds = 100;
  TestServer server(options);
  UploadWhole(&server, "finished", "text");
  Upload vanished(server.TcpChannel());
  vanished.Header("vanished");
  vanished.Chunk(0, "some text ");
  vanished.NextOf(v1::UploadDocumentEvent::kAck);
  vanished.Cancel();
  vanished.Finish();
  Upload silent(server.TcpChannel());
  silent.Header("silent");
  silent.NextOf(v1::UploadDocumentEvent::kCreated);
  EXPECT_GT(Find(&server, "vanished")->expire_time().seconds(), std::time(nullptr) + 90);
  EXPECT_FALSE(Find(&server, "finished")->has_expire_time());

  server.clock().Advance(std::chrono::seconds(60));
  Upload active(server.TcpChannel());
  active.Header("active");
  active.Chunk(0, "some text ");
  active.NextOf(v1::UploadDocumentEvent::kAck);
  server.clock().Advance(std::chrono::seconds(60));
  WaitUntilGone(&server, "vanished");
  WaitUntilGone(&server, "silent");
  const grpc::Status status = silent.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_NE(status.error_message().find("100 s"), std::string::npos) << status.error_message();
  EXPECT_TRUE(Find(&server, "active").has_value());
  EXPECT_TRUE(Find(&server, "finished").has_value());
}

TEST(UploadExpiry, EmptyUploadsMakeRoomTheOldestFirst) {
  server::ServerOptions options;
  options.engine.max_documents = 3;
  TestServer server(options);
  UploadWhole(&server, "finished", "text");
  Upload first(server.TcpChannel());
  first.Header("first");
  first.NextOf(v1::UploadDocumentEvent::kCreated);
  Upload second(server.TcpChannel());
  second.Header("second");
  second.Chunk(0, "some text ");
  second.NextOf(v1::UploadDocumentEvent::kAck);
  UploadWhole(&server, "new", "text");
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_FALSE(Find(&server, "first").has_value());
  // Nothing is left to make room.
  Upload late(server.TcpChannel());
  late.Header("late");
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  second.FinishUpload();
  EXPECT_TRUE(second.NextOf(v1::UploadDocumentEvent::kReady).has_ready());
}

}  // namespace
}  // namespace folio::testing
