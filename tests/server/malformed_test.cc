// Messages that are none: every method says so, and counts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using google::protobuf::MethodDescriptor;
using ::testing::HasSubstr;

const std::string kNoField = "\xFF\xFF\xFF\xFF";
// Field 1, two bytes, of which the second does not go on what the first begins.
const std::string kNotUtf8 = "\x0a\x02\xC3\x28";
const std::string kTooShort = "\x0a\x7F";

void ExpectMalformed(const grpc::Status& status, const std::string& type) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat("the request is no ", type, ":")));
  EXPECT_EQ(DetailsOf(status).info.reason(), "MALFORMED_REQUEST");
}

TEST(Malformed, EveryMethodSaysSoAndCountsIt) {
  TestServer server(WithMetrics());
  const auto channel = server.TcpChannel();
  ASSERT_EQ(AllMethods().size(), 17u);
  for (const MethodDescriptor* method : AllMethods()) {
    SCOPED_TRACE(method->full_name());
    RawCall call(channel, PathOf(*method));
    call.Send(kNoField);
    ExpectMalformed(call.Finish(), method->input_type()->full_name());
    // A call is counted a moment after its client has the status.
    const std::string counted = absl::StrCat(
        "\nfolio_grpc_server_handled_total{grpc_code=\"INVALID_ARGUMENT\",grpc_method=\"",
        method->name(), "\"} 1\n");
    while (server.Metrics().find(counted) == std::string::npos) {
    }
  }
  EXPECT_EQ(server.engine().num_running(), 0);
}

// Too long to be read by the threads of gRPC.
TEST(Malformed, SoIsALongOneOfAnyMethod) {
  TestServer server;
  const auto channel = server.TcpChannel();
  std::string bytes;
  while (bytes.size() < 100'000) bytes += kNoField;
  for (const MethodDescriptor* method : AllMethods()) {
    SCOPED_TRACE(method->full_name());
    RawCall call(channel, PathOf(*method));
    call.Send(bytes);
    ExpectMalformed(call.Finish(), method->input_type()->full_name());
  }
  EXPECT_EQ(server.engine().num_running(), 0);
}

TEST(Malformed, TextThatIsNotUtf8IsToo) {
  TestServer server;
  const auto channel = server.TcpChannel();
  for (const std::string& bytes : {kNotUtf8, kTooShort}) {
    RawCall unary(channel, "/folio.v1.Documents/GetDocument");
    unary.Send(bytes);
    ExpectMalformed(unary.Finish(), "folio.v1.GetDocumentRequest");
    RawCall streaming(channel, "/folio.v1.Inference/Generate");
    streaming.Send(bytes);
    ExpectMalformed(streaming.Finish(), "folio.v1.GenerateRequest");
  }
}

// gRPC takes a part that it cannot read for the end of the stream.
TEST(Malformed, APartOfAScoredTextIsNotItsEnd) {
  TestServer server;
  RawCall call(server.TcpChannel(), "/folio.v1.Inference/Score");
  v1::ScoreRequest request;
  request.mutable_header();
  call.Send(request);
  EXPECT_TRUE(call.Read());  // accepted
  request.set_text("abc");
  call.Send(request);
  call.Send(kNoField);
  ExpectMalformed(call.Finish(), "folio.v1.ScoreRequest");
}

TEST(Malformed, APartOfAnUploadLeavesTheDocumentAsItWas) {
  TestServer server;
  const auto channel = server.TcpChannel();
  RawCall call(channel, "/folio.v1.Documents/UploadDocument");
  v1::UploadDocumentRequest request;
  request.mutable_header()->set_document_id("book");
  request.mutable_header()->set_upload_token(kUploadToken);
  call.Send(request);
  EXPECT_TRUE(call.Read());  // created
  request.mutable_chunk()->set_data("abc");
  call.Send(request);
  EXPECT_TRUE(call.Read());  // ack
  call.Send(kNoField);
  ExpectMalformed(call.Finish(), "folio.v1.UploadDocumentRequest");
  Upload resumed(channel);
  resumed.Header("book");
  EXPECT_EQ(resumed.Next().created().next_offset(), 3u);
  resumed.FinishUpload(3);
  EXPECT_TRUE(resumed.Finish().ok());
}

TEST(Malformed, WhileTheModelLoadsThatIsSaidFirst) {
  TestServer server({}, TestServer::Model::kNotLoaded);
  RawCall call(server.TcpChannel(), "/folio.v1.Inference/Generate");
  call.Send(kNoField);
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace folio::testing
