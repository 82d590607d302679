// What a tenant may have and ask for, and that others do not notice.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/scratch_dir.h"
#include "tests/server/tenant_client.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

// Tokens "alpha" and "beta"; `limits` are those of a.
std::string TenantsWith(const std::string& limits) {
  return absl::StrReplaceAll(R"({"tenants": {
  "a": {LIMITS, "token_sha256": ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]},
  "b": {"token_sha256": ["f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"]}}})",
                             {{"LIMITS", limits}});
}

class TenantLimitsTest : public ::testing::Test {
 protected:
  void Start(const std::string& limits, server::ServerOptions options = {}) {
    options.tenants = directory_.Write("tenants.json", TenantsWith(limits));
    server_.emplace(options);
  }
  TenantClient As(const std::string& token) { return {server_->channel(), Bearer(token)}; }

  // A stream of Generate that has begun.
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
    v1::GenerateEvent first;

    bool begun() const { return first.has_accepted(); }
    grpc::Status End() {
      v1::GenerateEvent event;
      while (reader->Read(&event)) {
      }
      return reader->Finish();
    }
  };
  std::unique_ptr<Stream> Generate(const std::string& token, const v1::GenerateRequest& request,
                                   std::shared_ptr<grpc::Channel> channel = nullptr) {
    auto stream = std::make_unique<Stream>();
    stream->context.AddMetadata("authorization", "Bearer " + token);
    if (channel == nullptr) channel = server_->channel();
    stream->reader = v1::Inference::NewStub(channel)->Generate(&stream->context, request);
    stream->reader->Read(&stream->first);
    return stream;
  }
  // How a call ends that should not begin.
  grpc::Status Refusal(const std::string& token, const v1::GenerateRequest& request,
                       std::shared_ptr<grpc::Channel> channel = nullptr) {
    const auto stream = Generate(token, request, std::move(channel));
    if (stream->begun()) stream->context.TryCancel();
    return stream->End();
  }
  void Complete(Stream* stream, RequestId id) {
    server_->engine().Emit(Completed(1), id);
    EXPECT_TRUE(stream->End().ok());
  }
  static void ExpectRefused(const grpc::Status& status, const std::string& reason,
                            const std::string& bound) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    const Details details = DetailsOf(status);
    EXPECT_EQ(details.info.reason(), reason);
    ASSERT_TRUE(details.quota.has_value());
    EXPECT_EQ(details.quota->violations(0).subject(), "tenant");
    EXPECT_EQ(details.quota->violations(0).description(), bound);
    EXPECT_TRUE(details.retry.has_value());
  }

  const ScratchDir directory_;
  std::optional<TestServer> server_;
};

TEST_F(TenantLimitsTest, OpenCalls) {
  Start(R"("max_open_calls": 2)", WithMetrics());
  const auto first = Generate("alpha", Ask("x"));
  const auto second = Generate("alpha", Ask("x"));
  ASSERT_TRUE(first->begun() && second->begun());
  ExpectRefused(Refusal("alpha", Ask("x")), "TOO_MANY_CALLS", "open_calls");
  v1::ServerInfo info;
  ExpectRefused(As("alpha").Info(&info), "TOO_MANY_CALLS", "open_calls");
  EXPECT_TRUE(As("beta").Info(&info).ok());
  const auto other = Generate("beta", Ask("x"));
  EXPECT_TRUE(other->begun());
  EXPECT_EQ(server_->Metric(R"(folio_requests_rejected_total{reason="calls"})"), 2);
  Complete(first.get(), 1);
  // The server forgets a call a little after the client has its status.
  grpc::Status status;
  do {
    status = As("alpha").Info(&info);
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(status.ok());
  Complete(second.get(), 2);
  Complete(other.get(), 3);
}

TEST_F(TenantLimitsTest, Connections) {
  Start(R"("max_connections": 1)");
  const auto channel = [&](int number) {
    grpc::ChannelArguments own;  // else both would share a connection
    own.SetInt("folio.test", number);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->runner().grpc_port()),
                                     grpc::InsecureChannelCredentials(), own);
  };
  const auto one = channel(1);
  const auto other = channel(2);
  const auto first = Generate("alpha", Ask("x"), one);
  const auto second = Generate("alpha", Ask("x"), one);
  ASSERT_TRUE(first->begun() && second->begun());
  ExpectRefused(Refusal("alpha", Ask("x"), other), "TOO_MANY_CALLS", "connections");
  const auto of_other = Generate("beta", Ask("x"), other);
  EXPECT_TRUE(of_other->begun());
  Complete(first.get(), 1);
  Complete(second.get(), 2);
  Complete(of_other.get(), 3);
}

TEST_F(TenantLimitsTest, RequestMemory) {
  Start(R"("max_request_memory_bytes": 20000)");
  const std::string text(2 << 10, 'x');  // 27 KiB with its tokens
  const grpc::Status refused = Refusal("alpha", Ask(text));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const Details details = DetailsOf(refused);
  EXPECT_EQ(details.info.reason(), "REQUEST_MEMORY");
  EXPECT_EQ(details.quota->violations(0).subject(), "tenant");
  EXPECT_FALSE(details.retry.has_value()) << "it can never be had";
  const auto other = Generate("beta", Ask(text));
  EXPECT_TRUE(other->begun());
  Complete(other.get(), 1);
}

TEST_F(TenantLimitsTest, RequestsPerMinute) {
  Start(R"("requests_per_minute": 2)");
  for (RequestId id : {1, 2}) {
    const auto stream = Generate("alpha", Ask("x"));
    ASSERT_TRUE(stream->begun());
    Complete(stream.get(), id);
  }
  const grpc::Status refused = Refusal("alpha", Ask("x"));
  ExpectRefused(refused, "RATE_LIMIT", "requests_per_minute");
  EXPECT_NEAR(static_cast<double>(DetailsOf(refused).retry->retry_delay().seconds()), 30, 1);
  ExpectRefused(As("alpha").Upload("book", "text"), "RATE_LIMIT", "requests_per_minute");
  EXPECT_TRUE(As("beta").Upload("book", "text").ok());
  server_->clock().Advance(std::chrono::seconds(31));
  EXPECT_TRUE(As("alpha").Upload("book", "text").ok());
}

TEST_F(TenantLimitsTest, TokensPerMinute) {
  Start(R"("tokens_per_minute": 10)");
  ASSERT_TRUE(As("alpha").Upload("book", "twenty bytes of text").ok());
  const grpc::Status refused = Refusal("alpha", AskDocument("book", "x"));
  ExpectRefused(refused, "RATE_LIMIT", "tokens_per_minute");
  server_->clock().Advance(std::chrono::minutes(60));
  // Of a question about it, its own tokens count; then those of the answer.
  const auto stream = Generate("alpha", AskDocument("book", "x"));
  ASSERT_TRUE(stream->begun());
  const auto second = Generate("alpha", AskDocument("book", "x"));
  ASSERT_TRUE(second->begun());
  for (int i = 0; i < 10; ++i) server_->engine().Emit(Delta("word"), 1);
  Complete(stream.get(), 1);
  Complete(second.get(), 2);
  ExpectRefused(Refusal("alpha", Ask("x")), "RATE_LIMIT", "tokens_per_minute");
}

TEST_F(TenantLimitsTest, TokensOfScoredTextsCount) {
  Start(R"("tokens_per_minute": 10)");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer alpha");
  const auto stream = v1::Inference::NewStub(server_->channel())->Score(&context);
  v1::ScoreRequest request;
  request.mutable_header();
  stream->Write(request);
  for (int i = 0; i < 20; ++i) request.mutable_token_ids()->add_ids(3);
  stream->Write(request);
  stream->WritesDone();
  v1::ScoreEvent event;
  while (stream->Read(&event)) {
  }
  ASSERT_TRUE(stream->Finish().ok());
  // An upload has an end, whatever is wrong.
  ExpectRefused(As("alpha").Upload("book", "text"), "RATE_LIMIT", "tokens_per_minute");
}

TEST_F(TenantLimitsTest, EmptyUploadsOfWhoHasMostMakeRoom) {
  server::ServerOptions options;
  options.engine.max_documents = 4;
  Start(R"("weight": 1)", options);
  const auto begin = [&](const std::string& token, const std::string& id) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("authorization", "Bearer " + token);
    const auto stream = v1::Documents::NewStub(server_->channel())->UploadDocument(context.get());
    v1::UploadDocumentRequest header;
    header.mutable_header()->set_document_id(id);
    stream->Write(header);
    v1::UploadDocumentEvent created;
    EXPECT_TRUE(stream->Read(&created));
    stream->WritesDone();
    while (stream->Read(&created)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  };
  begin("alpha", "mine");
  for (const char* id : {"1", "2", "3"}) begin("beta", id);
  EXPECT_TRUE(As("alpha").Upload("book", "text").ok());
  EXPECT_EQ(As("alpha").Ids(), (std::vector<std::string>{"book", "mine"}));
  EXPECT_EQ(As("beta").Ids(), (std::vector<std::string>{"2", "3"}));
}

}  // namespace
}  // namespace folio::testing
