// An upload whose document waits for room in the cache is not read until there is some.
#include <gtest/gtest.h>

#include "server/document_expiry.h"
#include "server/document_upload.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

const std::string kPart = "one two three ";

// The heartbeats of another stream show that the pump goes on.
TEST(UploadRoom, TheNextPartIsReadWhenThereIsRoomForTheLast) {
  TestServer server;
  server.engine().SetRoom(false);
  Upload upload(server.TcpChannel());
  upload.Header("d");
  upload.Chunk(0, kPart);
  upload.NextOf(v1::UploadDocumentEvent::kAck);
  upload.Chunk(kPart.size(), kPart);
  v1::GenerateRequest ask = Ask("hello");
  ask.mutable_response()->set_heartbeat_interval_ms(100);
  Generate other(server.channel(), ask);
  server.engine().WaitForRequest();
  for (int beats = 0; beats < 10;) {
    server.clock().Advance(std::chrono::milliseconds(100));
    if (other.Next().has_heartbeat()) ++beats;
  }
  const auto document = server::DocumentUpload::Of(*server.engine().GetDocument("d"));
  EXPECT_EQ(document->size_bytes(), kPart.size());
  server.engine().SetRoom(true);
  EXPECT_EQ(upload.NextOf(v1::UploadDocumentEvent::kAck).ack().next_offset(), 2 * kPart.size());
  upload.FinishUpload(2 * kPart.size());
  EXPECT_TRUE(upload.Finish().ok());
  server.engine().Emit(Completed(0));
  EXPECT_TRUE(other.Finish().ok());
}

// The server itself does not read it.
TEST(UploadRoom, AnUploadThatWaitsDoesNotExpire) {
  TestServer server;
  server.engine().SetRoom(false);
  Upload upload(server.TcpChannel());
  upload.Header("d");
  upload.Chunk(0, kPart);
  upload.NextOf(v1::UploadDocumentEvent::kAck);
  server.clock().Advance(std::chrono::hours(2));
  server::DeleteExpiredUploads(&server.engine(), server.clock().now());
  EXPECT_EQ(server.engine().GetDocument("d")->state, DocumentState::kUploading);
  server.engine().SetRoom(true);
  server::DeleteExpiredUploads(&server.engine(), server.clock().now());
  EXPECT_FALSE(server.engine().GetDocument("d").has_value());
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::ABORTED);
}

}  // namespace
}  // namespace folio::testing
