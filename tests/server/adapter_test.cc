// Which adapter a call has, and what it is told of one that is not loaded. The fake engine has
// "poet".
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class AdapterServer : public ::testing::Test {
 protected:
  // What the engine gets, and what the client is told.
  struct Asked {
    AttentionSpec attention;
    std::string accepted;
  };
  Asked Submit(const v1::GenerateRequest& request) {
    Generate call(server_.channel(), request);
    Asked asked;
    asked.accepted = call.Next().accepted().adapter();
    asked.attention = server_.engine().WaitForRequest(++num_requests_).attention;
    server_.engine().Emit(Completed(1), num_requests_);
    EXPECT_TRUE(call.Finish().ok());
    return asked;
  }
  static void ExpectNoAdapter(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
    EXPECT_NE(status.error_message().find("'nobody'"), std::string::npos);
    EXPECT_EQ(DetailsOf(status).info.reason(), "ADAPTER_NOT_FOUND");
  }
  grpc::Status UploadUnder(const std::string& id, const std::string& adapter, bool whole = true) {
    Upload upload(server_.channel());
    v1::DocumentHeader header;
    header.set_document_id(id);
    header.set_adapter(adapter);
    header.set_upload_token(kUploadToken);
    upload.Header(header);
    if (whole) {
      upload.Chunk(0, "text");
      upload.FinishUpload();
    }
    upload.HalfClose();
    return upload.Finish();
  }
  v1::Document Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetDocumentRequest request;
    request.set_document_id(id);
    v1::Document document;
    EXPECT_TRUE(
        v1::Documents::NewStub(server_.channel())->GetDocument(&context, request, &document).ok());
    return document;
  }

  TestServer server_;
  RequestId num_requests_ = 0;
};

TEST_F(AdapterServer, APromptHasTheOneThatItNames) {
  v1::GenerateRequest request = Ask("x");
  EXPECT_EQ(Submit(request).attention.adapter, AdapterSpec{});
  request.set_adapter("poet");
  const Asked asked = Submit(request);
  EXPECT_EQ(asked.attention.adapter, (AdapterSpec{"poet", "00"}));
  EXPECT_EQ(asked.accepted, "poet");
}

TEST_F(AdapterServer, AQuestionHasThatOfItsDocumentUnlessItNamesOne) {
  EXPECT_TRUE(UploadUnder("verse", "poet").ok());
  EXPECT_TRUE(UploadUnder("prose", "").ok());
  EXPECT_EQ(Get("verse").adapter(), "poet");
  EXPECT_EQ(Get("prose").adapter(), "");
  EXPECT_EQ(Submit(AskDocument("verse", "x")).accepted, "poet");
  EXPECT_EQ(Submit(AskDocument("prose", "x")).accepted, "");
  v1::GenerateRequest plain = AskDocument("verse", "x");
  plain.set_adapter("");
  EXPECT_EQ(Submit(plain).attention.adapter, AdapterSpec{});
  v1::GenerateRequest other = AskDocument("prose", "x");
  other.set_adapter("poet");
  EXPECT_EQ(Submit(other).attention.adapter.name, "poet");
}

TEST_F(AdapterServer, OneThatIsNotLoadedIsNotFound) {
  EXPECT_TRUE(UploadUnder("prose", "").ok());
  v1::GenerateRequest request = Ask("x");
  request.set_adapter("nobody");
  ExpectNoAdapter(Generate(server_.channel(), request).Finish());
  request = AskDocument("prose", "x");
  request.set_adapter("nobody");
  ExpectNoAdapter(Generate(server_.channel(), request).Finish());
  ExpectNoAdapter(UploadUnder("verse", "nobody"));

  const auto inference = v1::Inference::NewStub(server_.channel());
  grpc::ClientContext of_many;
  v1::AskManyRequest many;
  *many.mutable_shared() = request;
  many.mutable_shared()->mutable_document()->clear_text();
  many.add_questions()->set_text("x");
  const auto answers = inference->AskMany(&of_many, many);
  v1::AskManyEvent answer;
  while (answers->Read(&answer)) {
  }
  ExpectNoAdapter(answers->Finish());

  grpc::ClientContext of_estimate;
  v1::EstimateRequest estimate;
  *estimate.mutable_request() = request;
  v1::EstimateResponse response;
  ExpectNoAdapter(inference->Estimate(&of_estimate, estimate, &response));
  grpc::ClientContext of_document;
  estimate.mutable_document()->set_token_count(10);
  estimate.mutable_document()->set_adapter("nobody");
  ExpectNoAdapter(inference->Estimate(&of_document, estimate, &response));

  grpc::ClientContext of_score;
  const auto scores = inference->Score(&of_score);
  v1::ScoreRequest header;
  header.mutable_header()->set_adapter("nobody");
  scores->Write(header);
  scores->WritesDone();
  v1::ScoreEvent score;
  while (scores->Read(&score)) {
  }
  ExpectNoAdapter(scores->Finish());
}

TEST_F(AdapterServer, AnEstimateSaysWhichOneItIsOf) {
  const auto inference = v1::Inference::NewStub(server_.channel());
  const auto adapter_of = [&inference](const v1::EstimateRequest& request) {
    grpc::ClientContext context;
    v1::EstimateResponse response;
    EXPECT_TRUE(inference->Estimate(&context, request, &response).ok());
    return response.adapter();
  };
  v1::EstimateRequest request;
  *request.mutable_request() = Ask("x");
  EXPECT_EQ(adapter_of(request), "");
  request.mutable_request()->set_adapter("poet");
  EXPECT_EQ(adapter_of(request), "poet");
  request.mutable_document()->set_token_count(10);
  EXPECT_EQ(adapter_of(request), "");
  request.mutable_document()->set_adapter("poet");
  EXPECT_EQ(adapter_of(request), "poet");
}

TEST_F(AdapterServer, AScoredTextHasTheOneThatItsHeaderNames) {
  grpc::ClientContext context;
  const auto scores = v1::Inference::NewStub(server_.channel())->Score(&context);
  v1::ScoreRequest request;
  request.mutable_header()->set_adapter("poet");
  scores->Write(request);
  request.set_text("some text");
  scores->Write(request);
  scores->WritesDone();
  v1::ScoreEvent event;
  ASSERT_TRUE(scores->Read(&event));
  EXPECT_EQ(event.accepted().adapter(), "poet");
  while (scores->Read(&event)) {
  }
  EXPECT_TRUE(scores->Finish().ok());
  EXPECT_EQ(server_.engine().WaitForRequest().attention.adapter.name, "poet");
}

TEST_F(AdapterServer, AnUploadGoesOnUnderTheAdapterThatItWasBegunWith) {
  UploadUnder("verse", "", /*whole=*/false);
  server_.engine().WaitForPause("verse");
  const grpc::Status status = UploadUnder("verse", "poet");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_EQ(DetailsOf(status).field(), "header.adapter");
  EXPECT_TRUE(UploadUnder("verse", "").ok());
}

TEST_F(AdapterServer, ServerInfoListsThem) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_TRUE(v1::Control::NewStub(server_.channel())->GetServerInfo(&context, {}, &info).ok());
  ASSERT_EQ(info.adapters_size(), 1);
  EXPECT_EQ(info.adapters(0).name(), "poet");
  EXPECT_EQ(info.adapters(0).rank(), 8u);
  EXPECT_EQ(info.adapters(0).target_modules(1), "v_proj");
  EXPECT_EQ(info.adapters(0).memory_bytes(), 4096u);
}

}  // namespace
}  // namespace folio::testing
