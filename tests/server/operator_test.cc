// Control.ListRequests and CancelRequest.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class Operator : public ::testing::Test {
 protected:
  v1::ListRequestsResponse List(uint32_t max = 0) {
    grpc::ClientContext context;
    v1::ListRequestsRequest request;
    request.set_max_requests(max);
    v1::ListRequestsResponse response;
    list_status_ = stub_->ListRequests(&context, request, &response);
    return response;
  }
  // How many calls were cancelled.
  uint32_t Cancel(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelRequestRequest request;
    request.set_request_id(id);
    v1::CancelRequestResponse response;
    cancel_status_ = stub_->CancelRequest(&context, request, &response);
    return response.num_cancelled();
  }
  // The only call.
  v1::RequestInfo Only() {
    const v1::ListRequestsResponse response = List();
    EXPECT_EQ(response.total(), 1u);
    EXPECT_EQ(response.requests_size(), 1);
    return response.requests_size() > 0 ? response.requests(0) : v1::RequestInfo();
  }
  static v1::GenerateRequest Named(const std::string& id, const std::string& prompt = "hello") {
    v1::GenerateRequest request = Ask(prompt);
    request.set_request_id(id);
    return request;
  }
  static void ExpectEndedByOperator(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(status.error_message(), "an operator cancelled the request");
  }

  TestServer server_;
  std::unique_ptr<v1::Control::Stub> stub_ = v1::Control::NewStub(server_.channel());
  grpc::Status list_status_;
  grpc::Status cancel_status_;
};

TEST_F(Operator, AnAnswerIsListedFromItsTextToItsEnd) {
  EXPECT_EQ(List().total(), 0u);
  Generate call(server_.channel(), Named("mine", std::string(FakeTokenizer::kHold)));
  server_.engine().fake_tokenizer().WaitUntilHolding();
  EXPECT_EQ(Only().phase(), v1::RequestInfo::PHASE_READING);
  server_.engine().fake_tokenizer().Release();
  const int64_t prompt_tokens =
      static_cast<int64_t>(server_.engine().WaitForRequest().tokens.size());
  call.Next();
  server_.clock().Advance(std::chrono::milliseconds(1500));
  const v1::RequestInfo queued = Only();
  EXPECT_EQ(queued.request_id(), "mine");
  EXPECT_EQ(queued.method(), "Generate");
  EXPECT_EQ(queued.tenant(), "");
  EXPECT_EQ(queued.strategy(), "full");
  EXPECT_EQ(queued.phase(), v1::RequestInfo::PHASE_QUEUED);
  EXPECT_DOUBLE_EQ(queued.age_seconds(), 1.5);
  EXPECT_EQ(queued.prompt_tokens(), static_cast<uint64_t>(prompt_tokens));
  server_.engine().Emit(PrefillEvent{10, 0, 5});
  call.Next();
  EXPECT_EQ(Only().phase(), v1::RequestInfo::PHASE_PREFILL);
  server_.engine().Emit(Delta("a"));
  call.Next();
  server_.engine().Emit(Delta("b"));
  call.Next();
  EXPECT_EQ(Only().phase(), v1::RequestInfo::PHASE_DECODE);
  EXPECT_EQ(Only().completion_tokens(), 2u);
  server_.engine().Emit(Completed(2));
  EXPECT_TRUE(call.Finish().ok());
  server_.runner().Drain([] { return false; });  // the call is gone, not only ended
}

TEST_F(Operator, ManyAreListedTheOldestFirstUpToTheLimit) {
  Generate first(server_.channel(), Named("first"));
  server_.engine().WaitForRequest(1);
  Generate second(server_.channel(), Named("second"));
  server_.engine().WaitForRequest(2);
  const v1::ListRequestsResponse all = List();
  ASSERT_EQ(all.requests_size(), 2);
  EXPECT_EQ(all.requests(0).request_id(), "first");
  EXPECT_EQ(all.requests(1).request_id(), "second");
  EXPECT_EQ(List(1).requests_size(), 1);
  EXPECT_EQ(List(1).total(), 2u);
  List(1001);
  EXPECT_EQ(list_status_.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(list_status_).field(), "max_requests");
  Cancel("first");
  ExpectEndedByOperator(first.Finish());
  Cancel("second");
  ExpectEndedByOperator(second.Finish());
}

TEST_F(Operator, AnAnswerIsCancelledInTheEngine) {
  Generate call(server_.channel(), Named("mine"));
  server_.engine().WaitForRequest();
  call.Next();
  EXPECT_EQ(Cancel("mine"), 1u);
  EXPECT_EQ(server_.engine().WaitForCancel().code(), absl::StatusCode::kCancelled);
  const grpc::Status status = call.Finish();
  ExpectEndedByOperator(status);
  EXPECT_EQ(DetailsOf(status).info.metadata().at("phase"), "queue");
}

TEST_F(Operator, AnAnswerIsCancelledWhileItsTextIsRead) {
  Generate call(server_.channel(), Named("mine", std::string(FakeTokenizer::kHold)));
  server_.engine().fake_tokenizer().WaitUntilHolding();
  EXPECT_EQ(Cancel("mine"), 1u);
  server_.engine().fake_tokenizer().Release();
  ExpectEndedByOperator(call.Finish());
  EXPECT_EQ(server_.engine().num_running(), 0);
}

TEST_F(Operator, CallsOfOneIdAreCancelledTogether) {
  Generate first(server_.channel(), Named("same"));
  server_.engine().WaitForRequest(1);
  Generate second(server_.channel(), Named("same"));
  server_.engine().WaitForRequest(2);
  EXPECT_EQ(Cancel("same"), 2u);
  ExpectEndedByOperator(first.Finish());
  ExpectEndedByOperator(second.Finish());
}

TEST_F(Operator, AnUploadIsListedAndCancelledAndCanBeResumed) {
  Upload upload(server_.channel());
  upload.Header("book");
  upload.NextOf(v1::UploadDocumentEvent::kCreated);
  upload.Chunk(0, "abc");
  upload.NextOf(v1::UploadDocumentEvent::kAck);
  const v1::RequestInfo info = Only();
  EXPECT_EQ(info.method(), "UploadDocument");
  EXPECT_EQ(info.document_id(), "book");
  EXPECT_EQ(info.strategy(), "full");
  ASSERT_FALSE(info.request_id().empty());
  EXPECT_EQ(Cancel(info.request_id()), 1u);
  ExpectEndedByOperator(upload.Finish());
  EXPECT_EQ(upload.Trailer("x-request-id"), info.request_id());
  server_.engine().WaitForPause("book");
  Upload again(server_.channel());
  again.Header("book");
  EXPECT_EQ(again.NextOf(v1::UploadDocumentEvent::kCreated).created().next_offset(), 3u);
}

TEST_F(Operator, AScoredTextIsListedAndCancelled) {
  const auto stub = v1::Inference::NewStub(server_.channel());
  grpc::ClientContext context;
  const auto stream = stub->Score(&context);
  v1::ScoreRequest request;
  request.mutable_header();
  stream->Write(request);
  v1::ScoreEvent event;
  ASSERT_TRUE(stream->Read(&event));
  const v1::RequestInfo info = Only();
  EXPECT_EQ(info.method(), "Score");
  EXPECT_EQ(info.strategy(), "full");
  EXPECT_EQ(Cancel(info.request_id()), 1u);
  EXPECT_FALSE(stream->Read(&event));
  ExpectEndedByOperator(stream->Finish());
}

TEST_F(Operator, AnIdThatNobodyHasIsNotFound) {
  Cancel("nobody's");
  EXPECT_EQ(cancel_status_.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(cancel_status_).info.reason(), "REQUEST_NOT_FOUND");
  for (const std::string& bad : {std::string(), std::string(129, 'x'), std::string("a\nb")}) {
    Cancel(bad);
    EXPECT_EQ(cancel_status_.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(cancel_status_).field(), "request_id");
  }
}

}  // namespace
}  // namespace folio::testing
