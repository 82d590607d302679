// Who may go on with an upload.
#include <gtest/gtest.h>

#include <set>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using Event = v1::UploadDocumentEvent;

TEST(UploadToken, OnlyWhoHasTheTokenGoesOn) {
  TestServer server;
  v1::DocumentHeader header;
  header.set_document_id("book");
  Upload first(server.channel());
  first.Header(header);
  const std::string token = first.Next().created().upload_token();
  EXPECT_GE(token.size(), 16u);
  first.Chunk(0, "abc");
  EXPECT_EQ(first.NextOf(Event::kAck).ack().next_offset(), 3u);
  std::string almost = token;
  almost.back() ^= 1;
  for (const std::string& wrong : {std::string(), almost, token + "0", std::string(kUploadToken)}) {
    header.set_upload_token(wrong);
    Upload other(server.channel());
    other.Header(header);
    const grpc::Status status = other.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << wrong;
    EXPECT_EQ(DetailsOf(status).info.reason(), "UPLOAD_TOKEN_MISMATCH");
    EXPECT_EQ(status.error_message().find(token), std::string::npos);
  }
  first.Chunk(3, "def");  // still the uploader
  EXPECT_EQ(first.NextOf(Event::kAck).ack().next_offset(), 6u);
  header.set_upload_token(token);
  Upload second(server.channel());
  second.Header(header);
  const Event created = second.Next();
  EXPECT_EQ(created.created().next_offset(), 6u);
  EXPECT_EQ(created.created().upload_token(), token);
  second.FinishUpload(6);
  EXPECT_TRUE(second.Finish().ok());
  UploadWhole(&server, "same", "abcdef");
  EXPECT_EQ(server.engine().DocumentTokens("book"), server.engine().DocumentTokens("same"));
}

TEST(UploadToken, TokensDifferAndTheirLengthHasLimits) {
  TestServer server;
  std::set<std::string> tokens;
  for (const char* id : {"a", "b", "c"}) {
    Upload upload(server.channel());
    v1::DocumentHeader header;
    header.set_document_id(id);
    upload.Header(header);
    tokens.insert(upload.Next().created().upload_token());
  }
  EXPECT_EQ(tokens.size(), 3u);
  for (const size_t bytes : {15, 129}) {
    Upload upload(server.channel());
    v1::DocumentHeader header;
    header.set_upload_token(std::string(bytes, 'x'));
    upload.Header(header);
    EXPECT_EQ(DetailsOf(upload.Finish()).field(), "header.upload_token");
  }
}

}  // namespace
}  // namespace folio::testing
