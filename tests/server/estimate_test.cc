#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class EstimateCall : public ::testing::Test {
 protected:
  grpc::Status Call(const v1::EstimateRequest& request) {
    grpc::ClientContext context;
    return stub_->Estimate(&context, request, &response_);
  }
  static v1::EstimateRequest Prompt(const std::string& text) {
    v1::EstimateRequest request;
    request.mutable_request()->set_prompt(text);
    request.mutable_request()->mutable_stopping()->set_max_new_tokens(7);
    return request;
  }

  TestServer server_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(server_.channel());
  v1::EstimateResponse response_;
};

TEST_F(EstimateCall, SaysTokensBytesAndWhetherItFits) {
  ASSERT_TRUE(Call(Prompt("abc")).ok());
  const uint64_t num_tokens = 1 + FakeTokenizer::TokensOf("abc").size();  // with BOS
  EXPECT_EQ(response_.prompt_tokens(), num_tokens);
  EXPECT_EQ(response_.total_tokens(), num_tokens + 7);
  EXPECT_EQ(response_.memory().device_kv_bytes_peak(), num_tokens);
  EXPECT_EQ(response_.fit(), v1::EstimateResponse::FIT_NOW);
  EXPECT_EQ(response_.reason(), "");
  EXPECT_TRUE(response_.strategy().has_full());
  EXPECT_EQ(response_.queue_seconds(), 0.5);
  EXPECT_EQ(response_.time_to_first_token_seconds(), 1 + static_cast<double>(num_tokens));
  ASSERT_TRUE(Call(Prompt(std::string(2000, 'a'))).ok());
  EXPECT_EQ(response_.fit(), v1::EstimateResponse::FIT_WHEN_IDLE);
  EXPECT_EQ(response_.reason(), "1000 bytes are free");
}

TEST_F(EstimateCall, OfADocumentThatIsNotThereYet) {
  v1::EstimateRequest request;
  request.mutable_document()->set_token_count(500);
  request.mutable_document()->mutable_strategy()->mutable_lm_infinite()->set_window(100);
  ASSERT_TRUE(Call(request).ok());
  EXPECT_EQ(response_.total_tokens(), 500u);
  EXPECT_EQ(response_.strategy().lm_infinite().window(), 100);
}

TEST_F(EstimateCall, BadOnesSayWhatIsWrong) {
  const auto field_of = [&](const v1::EstimateRequest& request) {
    const grpc::Status status = Call(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return DetailsOf(status).field();
  };
  EXPECT_EQ(field_of({}), "subject");
  EXPECT_EQ(field_of(Prompt("")), "prompt");
  v1::EstimateRequest document;
  document.mutable_document();
  EXPECT_EQ(field_of(document), "document.token_count");
  document.mutable_document()->set_token_count(~uint64_t{0});
  EXPECT_EQ(field_of(document), "document.token_count");
  document.mutable_document()->set_token_count(5);
  document.mutable_document()->mutable_strategy()->mutable_lm_infinite()->set_window(9999);
  EXPECT_EQ(field_of(document), "document.strategy");
}

TEST_F(EstimateCall, NeedsItsDocument) {
  v1::EstimateRequest request;
  request.mutable_request()->mutable_document()->set_document_id("nobody");
  request.mutable_request()->mutable_document()->set_text("Why?");
  EXPECT_EQ(Call(request).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(server_.engine().num_running(), 0);
}

}  // namespace
}  // namespace folio::testing
