#include <gtest/gtest.h>

#include <thread>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

server::ServerOptions Storing() {
  server::ServerOptions options;
  options.engine.kv_dir = "of the engine, which is not the real one";
  return options;
}

// One WatchDocument call of a client.
class Watch {
 public:
  Watch(TestServer* server, const std::string& id, bool until_saved = false)
      : server_(server), stub_(v1::Documents::NewStub(server->channel())) {
    v1::WatchDocumentRequest request;
    request.set_document_id(id);
    request.set_until_saved(until_saved);
    reader_ = stub_->WatchDocument(&context_, request);
  }
  // The next document; nullopt: the stream has ended.
  std::optional<v1::Document> Next() {
    server_->clock().Advance(std::chrono::milliseconds(100));
    v1::Document document;
    if (!reader_->Read(&document)) return std::nullopt;
    return document;
  }
  // The next document in `state`; progress may be told before it.
  std::optional<v1::Document> NextOf(v1::Document::State state) {
    std::optional<v1::Document> document = Next();
    while (document.has_value() && document->state() != state) document = Next();
    return document;
  }
  // The next document while no time passes.
  std::optional<v1::Document> NextNow() {
    v1::Document document;
    if (!reader_->Read(&document)) return std::nullopt;
    return document;
  }
  grpc::Status Finish() {
    while (Next().has_value()) continue;
    return reader_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  TestServer* const server_;
  const std::unique_ptr<v1::Documents::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::Document>> reader_;
};

TEST(WatchDocument, TellsOfEachChangeUntilTheDocumentIsReady) {
  TestServer server;
  server.engine().HoldPrefill();
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.NextOf(v1::UploadDocumentEvent::kAck);
  Watch watch(&server, "book");
  const auto first = watch.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->state(), v1::Document::STATE_UPLOADING);
  EXPECT_EQ(first->size_bytes(), 3u);
  upload.FinishUpload();
  server.engine().WaitForState("book", DocumentState::kPrefilling);
  ASSERT_TRUE(watch.NextOf(v1::Document::STATE_PREFILLING).has_value());
  const int64_t total = server.engine().GetDocument("book")->known_tokens;
  const auto prefilled = [&](int64_t count) {
    server.engine().EmitToDocument("book",
                                   PrefillEvent{.total_tokens = total, .processed_tokens = count});
  };
  prefilled(2);
  EXPECT_EQ(watch.Next()->prefilled_tokens(), 2u);
  prefilled(total);
  server.engine().EmitToDocument("book", CompletedEvent{});
  ASSERT_TRUE(watch.NextOf(v1::Document::STATE_READY).has_value());
  EXPECT_EQ(watch.Next(), std::nullopt);
  EXPECT_TRUE(watch.Finish().ok());
  EXPECT_TRUE(upload.Finish().ok());
}

TEST(WatchDocument, TellsOfAnotherStateAtOnceAndOfProgressNowAndThen) {
  TestServer server;
  server.engine().HoldPrefill();
  Upload upload(server.channel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.NextOf(v1::UploadDocumentEvent::kAck);
  Watch watch(&server, "book");
  EXPECT_EQ(watch.NextNow()->state(), v1::Document::STATE_UPLOADING);
  upload.FinishUpload();
  EXPECT_EQ(watch.NextNow()->state(), v1::Document::STATE_PREFILLING);
  const int64_t total = server.engine().GetDocument("book")->known_tokens;
  for (int64_t count = 1; count < total; ++count) {
    server.engine().EmitToDocument("book",
                                   PrefillEvent{.total_tokens = total, .processed_tokens = count});
  }
  EXPECT_EQ(watch.Next()->prefilled_tokens(), static_cast<uint64_t>(total - 1));
  server.engine().EmitToDocument("book",
                                 PrefillEvent{.total_tokens = total, .processed_tokens = total});
  EXPECT_EQ(watch.NextNow()->state(), v1::Document::STATE_READY);
  EXPECT_TRUE(watch.Finish().ok());
}

TEST(WatchDocument, OfAReadyDocumentEndsAtOnce) {
  TestServer server;
  UploadWhole(&server, "book", "text");
  Watch watch(&server, "book");
  EXPECT_EQ(watch.Next()->state(), v1::Document::STATE_READY);
  EXPECT_TRUE(watch.Finish().ok());
}

TEST(WatchDocument, AFailureIsALastChange) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.NextOf(v1::UploadDocumentEvent::kCreated);
  Watch watch(&server, "book");
  EXPECT_EQ(watch.Next()->state(), v1::Document::STATE_UPLOADING);
  upload.Chunk(0, "\xFF");
  EXPECT_FALSE(upload.Finish().ok());
  EXPECT_TRUE(watch.NextOf(v1::Document::STATE_FAILED).has_value());
  EXPECT_TRUE(watch.Finish().ok());
}

TEST(WatchDocument, GoesOnUntilTheDocumentIsSavedIfAsked) {
  TestServer server(Storing());
  UploadWhole(&server, "book", "text");
  Watch watch(&server, "book", /*until_saved=*/true);
  EXPECT_FALSE(watch.Next()->saved());
  server.engine().SaveDocuments(int64_t{77});
  EXPECT_TRUE(server.engine().SaveDocument(server.engine().GetDocument("book")->handle).ok());
  EXPECT_EQ(watch.Next()->stored_bytes(), 77u);
  EXPECT_TRUE(watch.Finish().ok());
}

TEST(WatchDocument, EndsWhenItCannotBeSaved) {
  TestServer server(Storing());
  UploadWhole(&server, "book", "text");
  Watch watch(&server, "book", /*until_saved=*/true);
  EXPECT_EQ(watch.Next()->save_error(), "");
  server.engine().SaveDocuments(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(server.engine().SaveDocument(server.engine().GetDocument("book")->handle).ok());
  EXPECT_EQ(watch.Next()->save_error(), "the disk is full");
  EXPECT_TRUE(watch.Finish().ok());
}

TEST(WatchDocument, OfWhatIsNotThereIsRefused) {
  TestServer server;
  EXPECT_EQ(Watch(&server, "nothing").Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(Watch(&server, "a b").Finish()).field(), "document_id");
  UploadWhole(&server, "book", "text");
  EXPECT_EQ(Watch(&server, "book", /*until_saved=*/true).Finish().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(WatchDocument, EndsWhenTheDocumentIsDeletedAlsoIfAnotherOneTakesItsId) {
  TestServer server;
  Upload upload(server.channel());
  upload.Header("book");
  upload.NextOf(v1::UploadDocumentEvent::kCreated);
  Watch watch(&server, "book");
  EXPECT_TRUE(watch.Next().has_value());
  EXPECT_TRUE(server.engine().DeleteDocument(server.engine().GetDocument("book")->handle).ok());
  UploadWhole(&server, "book", "another text");
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(upload.Finish().ok());
}

TEST(WatchDocument, ADrainEndsIt) {
  server::ServerOptions options;
  options.drain_seconds = 0;
  TestServer server(options);
  Upload upload(server.channel());
  upload.Header("book");
  upload.NextOf(v1::UploadDocumentEvent::kCreated);
  Watch left(&server, "book");
  EXPECT_TRUE(left.Next().has_value());
  left.Cancel();
  EXPECT_EQ(left.Finish().error_code(), grpc::StatusCode::CANCELLED);
  Watch watch(&server, "book");
  EXPECT_TRUE(watch.Next().has_value());
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

}  // namespace
}  // namespace folio::testing
