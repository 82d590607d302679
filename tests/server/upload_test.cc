#include <gtest/gtest.h>

#include "engine/tokenizer/streaming_tokenizer.h"
#include "tests/server/tcp_proxy.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using Event = v1::UploadDocumentEvent;

std::vector<int32_t> DocumentTokens(std::string_view text) {
  std::vector<int32_t> tokens = FakeTokenizer::TokensOf(text);
  tokens.insert(tokens.begin(), FakeTokenizer::kBos);
  return tokens;
}

v1::Document Get(TestServer* server, const std::string& id) {
  grpc::ClientContext context;
  v1::GetDocumentRequest request;
  request.set_document_id(id);
  v1::Document document;
  const grpc::Status status =
      v1::Documents::NewStub(server->channel())->GetDocument(&context, request, &document);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return document;
}

void Delete(TestServer* server, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteDocumentRequest request;
  request.set_document_id(id);
  v1::DeleteDocumentResponse response;
  const grpc::Status status =
      v1::Documents::NewStub(server->channel())->DeleteDocument(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(Upload, PartsAreAcknowledgedAndTheDocumentBecomesReady) {
  TestServer server;
  Upload upload(server.channel());
  v1::DocumentHeader header;
  header.set_document_id("book");
  header.set_display_name("A book");
  header.mutable_strategy()->mutable_lm_infinite()->set_window(64);
  upload.Header(header);
  const Event created = upload.Next();
  EXPECT_EQ(created.created().document_id(), "book");
  EXPECT_EQ(created.created().next_offset(), 0u);
  upload.Chunk(0, "one ");
  EXPECT_EQ(upload.Next().ack().next_offset(), 4u);
  upload.Chunk(4, "two");
  EXPECT_EQ(upload.Next().ack().next_offset(), 7u);
  upload.FinishUpload(7);
  const Event progress = upload.Next();
  EXPECT_EQ(progress.progress().known_tokens(), 9u);  // BOS, space, 7 bytes
  EXPECT_EQ(progress.progress().prefilled_tokens(), 9u);
  const v1::Document ready = upload.Next().ready();
  EXPECT_EQ(ready.state(), v1::Document::STATE_READY);
  EXPECT_EQ(ready.display_name(), "A book");
  EXPECT_EQ(ready.size_bytes(), 7u);
  EXPECT_EQ(ready.token_count(), 9u);
  EXPECT_EQ(ready.strategy().lm_infinite().window(), 64u);
  EXPECT_GT(ready.create_time().seconds(), 0);
  EXPECT_TRUE(upload.Finish().ok());
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens("one two"));
}

TEST(Upload, AnEmptyIdIsReplaced) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("");
  const std::string id = upload.Next().created().document_id();
  EXPECT_EQ(id.rfind("doc-", 0), 0u);
  upload.Chunk(0, "text");
  upload.FinishUpload();
  EXPECT_TRUE(upload.Finish().ok());
  EXPECT_EQ(Get(&server, id).state(), v1::Document::STATE_READY);
}

TEST(Upload, TokensReachTheEngineBeforeTheTextIsComplete) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  std::string text;
  while (text.size() < 20000) text += "word ";
  upload.Chunk(0, text);
  EXPECT_EQ(upload.NextOf(Event::kAck).ack().next_offset(), text.size());
  EXPECT_GT(server.engine().DocumentTokens("book").size(), 8000u);
  upload.FinishUpload();
  EXPECT_TRUE(upload.Finish().ok());
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens(text));
}

TEST(Upload, ACharacterMayBeSplitBetweenParts) {
  TestServer server;
  const std::string text = "\xE2\x82\xAC!";  // the euro sign
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, text.substr(0, 2));
  upload.Chunk(2, text.substr(2));
  upload.FinishUpload(4);
  EXPECT_TRUE(upload.Finish().ok());
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens(text));
}

TEST(Upload, InvalidUtf8FailsTheDocument) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "ab\xFF");
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), "chunk.data");
  const v1::Document document = Get(&server, "book");
  EXPECT_EQ(document.state(), v1::Document::STATE_FAILED);
  EXPECT_FALSE(document.error().empty());
  server.engine().WaitForState("book", DocumentState::kFailed);
  // Its id is free for another try.
  UploadWhole(&server, "book", "text");
  EXPECT_EQ(Get(&server, "book").state(), v1::Document::STATE_READY);
}

TEST(Upload, ATextThatEndsInsideACharacterFails) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "ab\xE2\x82");
  upload.FinishUpload();
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), "finish");
}

struct BadPart {
  const char* name;
  std::function<void(Upload*)> send;  // after header and the 4 bytes "abcd"
  const char* field;
};

class BadUpload : public ::testing::TestWithParam<BadPart> {};

TEST_P(BadUpload, IsRefusedAndCanBeResumed) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "abcd");
  GetParam().send(&upload);
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), GetParam().field);
  EXPECT_EQ(Get(&server, "book").state(), v1::Document::STATE_UPLOADING);
  Upload resumed(server.channel());
  resumed.Header("book");
  EXPECT_EQ(resumed.Next().created().next_offset(), 4u);
  resumed.Chunk(4, "ef");
  resumed.FinishUpload(6);
  EXPECT_TRUE(resumed.Finish().ok());
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens("abcdef"));
}

INSTANTIATE_TEST_SUITE_P(
    Parts, BadUpload,
    ::testing::Values(
        BadPart{"Gap", [](Upload* u) { u->Chunk(5, "x"); }, "chunk.offset"},
        BadPart{"Overlap", [](Upload* u) { u->Chunk(3, "x"); }, "chunk.offset"},
        BadPart{"Duplicate", [](Upload* u) { u->Chunk(0, "abcd"); }, "chunk.offset"},
        BadPart{"Empty", [](Upload* u) { u->Chunk(4, ""); }, "chunk.data"},
        BadPart{"TooLarge", [](Upload* u) { u->Chunk(4, std::string((1 << 20) + 1, 'x')); },
                "chunk.data"},
        BadPart{"SecondHeader", [](Upload* u) { u->Header("book"); }, "header"},
        BadPart{"WrongTotal", [](Upload* u) { u->FinishUpload(5); }, "finish.total_bytes"}),
    [](const auto& info) { return info.param.name; });

TEST(Upload, TheFirstRequestMustBeAHeader) {
  TestServer server;
  Upload upload(server.channel());
  upload.Chunk(0, "abc");
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field(), "header");
}

TEST(Upload, BadHeadersAreRefused) {
  TestServer server;
  const std::vector<std::string> bad = {"a/b", "a b", "\xC3\xA4", "..", std::string(65, 'a')};
  for (const std::string& id : bad) {
    Upload upload(server.channel());
    upload.Header(id);
    EXPECT_EQ(DetailsOf(upload.Finish()).field(), "header.document_id") << id;
  }
  Upload upload(server.channel());
  v1::DocumentHeader header;
  header.mutable_strategy()->mutable_lm_infinite()->set_window(100000);
  upload.Header(header);
  EXPECT_EQ(DetailsOf(upload.Finish()).field(), "header.strategy");
}

TEST(Upload, AnEmptyDocumentIsRefused) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.FinishUpload();
  EXPECT_EQ(DetailsOf(upload.Finish()).field(), "finish");
}

TEST(Upload, TheEndWithoutFinishPausesAndCanBeResumed) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.HalfClose();
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "UPLOAD_INCOMPLETE");
  server.engine().WaitForPause("book");
}

TEST(Upload, AVanishedClientPausesThePrefill) {
  TestServer server;
  TcpProxy proxy(server.runner().grpc_port());
  Upload upload(server.TcpChannel(proxy.port()));
  upload.Header("book");
  upload.Chunk(0, "abc");
  EXPECT_EQ(upload.NextOf(Event::kAck).ack().next_offset(), 3u);
  proxy.Cut();
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  server.engine().WaitForPause("book");
}

TEST(Upload, ASecondConnectionTakesOver) {
  TestServer server;
  Upload first(server.channel());
  first.Header("book");
  first.Chunk(0, "abc");
  EXPECT_EQ(first.NextOf(Event::kAck).ack().next_offset(), 3u);
  Upload second(server.channel());
  second.Header("book");
  EXPECT_EQ(second.Next().created().next_offset(), 3u);
  const grpc::Status status = first.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "UPLOAD_TAKEN_OVER");
  second.Chunk(3, "def");
  second.FinishUpload(6);
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens("abcdef"));
}

// A part is still being tokenised when the document is deleted and its id taken by another text.
TEST(Upload, TokensOfADeletedDocumentDoNotReachItsSuccessor) {
  TestServer server;
  Upload first(server.channel());
  first.Header("book");
  EXPECT_TRUE(first.Next().has_created());
  std::string text(FakeTokenizer::kHold);
  while (text.size() < 2 * StreamingTokenizer::kMinSegmentBytes) text += " first";
  first.Chunk(0, text);
  server.engine().fake_tokenizer().WaitUntilHolding();
  Delete(&server, "book");
  Upload second(server.channel());
  second.Header("book");
  EXPECT_EQ(second.Next().created().next_offset(), 0u);
  second.Chunk(0, "second");
  EXPECT_TRUE(second.NextOf(Event::kAck).has_ack());
  server.engine().fake_tokenizer().Release();
  server.engine().WaitForAppends(2);  // the second one's BOS, and the first one's part
  second.FinishUpload();
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(server.engine().DocumentTokens("book"), DocumentTokens("second"));
}

// Nobody sends anything more; a paused prefill would wait for ever.
TEST(Upload, AFinishedTextIsPrefilledWhenItsClientVanishes) {
  TestServer server;
  server.engine().HoldPrefill();
  TcpProxy proxy(server.runner().grpc_port());
  Upload upload(server.TcpChannel(proxy.port()));
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.FinishUpload();
  server.engine().WaitForState("book", DocumentState::kPrefilling);
  proxy.Cut();
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  Upload other(server.channel());  // its vanishing is known when another call has ended
  other.Header("other");
  other.Chunk(0, "abc");
  other.HalfClose();
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::ABORTED);
  server.engine().WaitForPause("other");
  EXPECT_FALSE(server.engine().IsPaused("book"));
}

TEST(Upload, AFinishedDocumentCannotBeUploadedAgain) {
  TestServer server;
  UploadWhole(&server, "book", "abc");
  Upload again(server.channel());
  again.Header("book");
  EXPECT_EQ(again.Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST(Upload, ResumingUnderAnotherStrategyIsRefused) {
  TestServer server;
  Upload first(server.channel());
  first.Header("book");
  EXPECT_TRUE(first.Next().has_created());
  Upload second(server.channel());
  v1::DocumentHeader header;
  header.set_document_id("book");
  header.set_upload_token(kUploadToken);
  header.mutable_strategy()->mutable_lm_infinite();
  second.Header(header);
  EXPECT_EQ(DetailsOf(second.Finish()).field(), "header.strategy");
  first.Chunk(0, "abc");  // still the uploader
  first.FinishUpload();
  EXPECT_TRUE(first.Finish().ok());
}

TEST(Upload, LimitsAreKept) {
  server::ServerOptions options;
  options.max_document_bytes = 10;
  options.engine.max_documents = 1;
  TestServer server(options);
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "0123456789");
  upload.Chunk(10, "x");
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "DOCUMENT_TOO_LARGE");
  EXPECT_FALSE(DetailsOf(status).retry.has_value());
  Upload second(server.channel());
  second.Header("other");
  const grpc::Status refused = second.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused).info.reason(), "TOO_MANY_DOCUMENTS");
  // Documents stay until they are deleted.
  EXPECT_FALSE(DetailsOf(refused).retry.has_value());
}

TEST(Upload, AFullPoolEndsTheUpload) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  EXPECT_TRUE(upload.Next().has_created());
  server.engine().EmitToDocument(
      "book", FailedEvent{absl::ResourceExhaustedError("no room"), Phase::kPrefill});
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "KV_POOL_FULL");
}

TEST(Upload, ProgressIsRateLimitedButTheLastOneComes) {
  TestServer server;
  server.engine().HoldPrefill();
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.FinishUpload();
  EXPECT_TRUE(upload.NextOf(Event::kAck).has_ack());
  server.engine().WaitForState("book", DocumentState::kPrefilling);
  server.engine().EmitToDocument("book", PrefillEvent{5, 0, 1});
  EXPECT_EQ(upload.NextOf(Event::kProgress).progress().prefilled_tokens(), 1u);
  for (int64_t i = 2; i <= 5; ++i) server.engine().EmitToDocument("book", PrefillEvent{5, 0, i});
  EXPECT_EQ(upload.NextOf(Event::kProgress).progress().prefilled_tokens(), 5u);
  server.engine().EmitToDocument("book", CompletedEvent{});
  EXPECT_TRUE(upload.NextOf(Event::kReady).has_ready());
  EXPECT_TRUE(upload.Finish().ok());
}

}  // namespace
}  // namespace folio::testing
