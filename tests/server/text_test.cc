#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class Text : public ::testing::Test {
 protected:
  TestServer server_;
  std::unique_ptr<v1::Text::Stub> stub_ = v1::Text::NewStub(server_.channel());
};

TEST_F(Text, TokenizeAndBack) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("h\xC3\xA9llo");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  const auto expected = FakeTokenizer::TokensOf("h\xC3\xA9llo");
  EXPECT_EQ(std::vector<int32_t>(tokens.token_ids().begin(), tokens.token_ids().end()), expected);
  grpc::ClientContext back_context;
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), "h\xC3\xA9llo");
}

TEST_F(Text, BosComesWhenAskedFor) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("a");
  request.set_add_bos(true);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  EXPECT_EQ(tokens.token_ids(0), static_cast<uint32_t>(FakeTokenizer::kBos));
}

TEST_F(Text, IdsOutsideTheVocabularyAreRefused) {
  grpc::ClientContext context;
  v1::DetokenizeRequest request;
  request.add_token_ids(5);
  request.add_token_ids(0xFFFFFFFF);
  v1::DetokenizeResponse text;
  const grpc::Status status = stub_->Detokenize(&context, request, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), "token_ids[1]");
}

TEST(Control, ServerInfoTellsModelLimitsAndLoad) {
  server::ServerOptions options;
  options.engine.max_documents = 7;
  options.engine.max_queued_requests = 9;
  TestServer server(options);
  EngineStats stats;
  stats.running = 2;
  stats.waiting = 3;
  stats.kv_used_bytes = 100;
  stats.summary_used_bytes = 5;
  stats.kv_capacity_bytes = 1000;
  server.engine().set_stats(stats);
  UploadWhole(&server, "book", "abc");
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(v1::Control::NewStub(server.channel())
                  ->GetServerInfo(&context, v1::GetServerInfoRequest(), &info)
                  .ok());
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.model().name(), "fake");
  EXPECT_EQ(info.model().max_position_embeddings(), 512u);
  EXPECT_EQ(info.model().sliding_window(), 300u);
  EXPECT_EQ(info.backend(), "cpu");
  EXPECT_EQ(info.limits().max_documents(), 7u);
  EXPECT_EQ(info.limits().max_queued_requests(), 9u);
  EXPECT_EQ(info.limits().max_receive_message_bytes(), 4u << 20);
  EXPECT_LT(info.limits().max_inline_prompt_bytes(), info.limits().max_receive_message_bytes());
  EXPECT_TRUE(info.default_strategy().has_full());
  EXPECT_EQ(info.strategies(1), "lm_infinite");
  EXPECT_EQ(info.kv(0).tier(), "device");
  EXPECT_EQ(info.kv(0).used_bytes(), 105u);
  EXPECT_EQ(info.kv(0).capacity_bytes(), 1000u);
  EXPECT_EQ(info.num_requests_running(), 2u);
  EXPECT_EQ(info.num_requests_waiting(), 3u);
  EXPECT_EQ(info.num_documents(), 1u);
}

}  // namespace
}  // namespace folio::testing
