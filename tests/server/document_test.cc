#include <gtest/gtest.h>

#include <thread>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class Documents : public ::testing::Test {
 protected:
  grpc::Status Get(const std::string& id, v1::Document* document) {
    grpc::ClientContext context;
    v1::GetDocumentRequest request;
    request.set_document_id(id);
    return stub_->GetDocument(&context, request, document);
  }
  grpc::Status Delete(const std::string& id) {
    grpc::ClientContext context;
    v1::DeleteDocumentRequest request;
    request.set_document_id(id);
    v1::DeleteDocumentResponse response;
    return stub_->DeleteDocument(&context, request, &response);
  }
  grpc::Status Save(const std::string& id, v1::Document* document) {
    grpc::ClientContext context;
    v1::SaveDocumentRequest request;
    request.set_document_id(id);
    return stub_->SaveDocument(&context, request, document);
  }
  grpc::Status List(uint32_t page_size, const std::string& token,
                    v1::ListDocumentsResponse* response) {
    grpc::ClientContext context;
    v1::ListDocumentsRequest request;
    request.set_page_size(page_size);
    request.set_page_token(token);
    return stub_->ListDocuments(&context, request, response);
  }

  TestServer server_;
  std::unique_ptr<v1::Documents::Stub> stub_ = v1::Documents::NewStub(server_.channel());
};

TEST_F(Documents, ListGoesThroughAllPagesInOrder) {
  for (const char* id : {"d", "a", "e", "b", "c"}) UploadWhole(&server_, id, "text");
  std::vector<std::string> ids;
  std::vector<int> sizes;
  std::string token;
  do {
    v1::ListDocumentsResponse page;
    ASSERT_TRUE(List(2, token, &page).ok());
    sizes.push_back(page.documents_size());
    for (const v1::Document& document : page.documents()) ids.push_back(document.document_id());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_EQ(ids, (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(sizes, (std::vector<int>{2, 2, 1}));
}

TEST_F(Documents, AFullLastPageHasNoToken) {
  for (const char* id : {"a", "b"}) UploadWhole(&server_, id, "text");
  v1::ListDocumentsResponse page;
  ASSERT_TRUE(List(2, "", &page).ok());
  EXPECT_EQ(page.documents_size(), 2);
  EXPECT_TRUE(page.next_page_token().empty());
}

TEST_F(Documents, AListingSurvivesTheDeletionOfItsToken) {
  for (const char* id : {"a", "b", "c"}) UploadWhole(&server_, id, "text");
  v1::ListDocumentsResponse page;
  ASSERT_TRUE(List(2, "", &page).ok());
  ASSERT_TRUE(Delete("b").ok());
  v1::ListDocumentsResponse next;
  ASSERT_TRUE(List(2, page.next_page_token(), &next).ok());
  ASSERT_EQ(next.documents_size(), 1);
  EXPECT_EQ(next.documents(0).document_id(), "c");
}

TEST_F(Documents, BadListingsAreRefused) {
  v1::ListDocumentsResponse page;
  EXPECT_EQ(DetailsOf(List(1001, "", &page)).field(), "page_size");
  EXPECT_EQ(DetailsOf(List(0, "no/token", &page)).field(), "page_token");
}

TEST_F(Documents, UnknownOnesAreNotFound) {
  v1::Document document;
  for (const grpc::Status& status : {Get("nothing", &document), Delete("nothing")}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(DetailsOf(status).info.reason(), "DOCUMENT_NOT_FOUND");
    EXPECT_EQ(DetailsOf(status).info.metadata().at("document_id"), "nothing");
  }
  EXPECT_EQ(DetailsOf(Get("", &document)).field(), "document_id");
  EXPECT_EQ(DetailsOf(Delete("a b")).field(), "document_id");
}

TEST_F(Documents, DeletedMeansGoneForNewQuestions) {
  UploadWhole(&server_, "book", "text");
  ASSERT_TRUE(Delete("book").ok());
  Generate call(server_.channel(), AskDocument("book", "why"));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  UploadWhole(&server_, "book", "another text");  // the id is free again
}

TEST_F(Documents, DeletionEndsARunningUpload) {
  Upload upload(server_.channel());
  upload.Header("book");
  EXPECT_TRUE(upload.Next().has_created());
  ASSERT_TRUE(Delete("book").ok());
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Documents, AFailedOneCanBeDeleted) {
  Upload upload(server_.channel());
  upload.Header("book");
  upload.Chunk(0, "\xFF");
  EXPECT_FALSE(upload.Finish().ok());
  EXPECT_TRUE(Delete("book").ok());
  v1::Document document;
  EXPECT_EQ(Get("book", &document).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Documents, ToSaveNeedsAServerThatStoresThem) {
  UploadWhole(&server_, "book", "text");
  v1::Document document;
  EXPECT_EQ(Save("book", &document).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Save("nothing", &document).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(Save("a b", &document)).field(), "document_id");
}

TEST_F(Documents, SavedOnesSaySo) {
  UploadWhole(&server_, "book", "text");
  v1::Document document;
  ASSERT_TRUE(Get("book", &document).ok());
  EXPECT_FALSE(document.saved());
  server_.engine().SaveDocuments(int64_t{12345});
  ASSERT_TRUE(Save("book", &document).ok());
  EXPECT_TRUE(document.saved());
  EXPECT_EQ(document.stored_bytes(), 12345u);
  EXPECT_EQ(document.document_id(), "book");
}

TEST_F(Documents, WhatCannotBeSavedSaysWhyAndStays) {
  UploadWhole(&server_, "book", "text");
  server_.engine().SaveDocuments(absl::ResourceExhaustedError("the disk is full"));
  v1::Document document;
  EXPECT_EQ(Save("book", &document).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(Get("book", &document).ok());
  EXPECT_FALSE(document.saved());
  EXPECT_EQ(document.save_error(), "the disk is full");
  EXPECT_EQ(document.state(), v1::Document::STATE_READY);
}

TEST_F(Documents, WhoWaitsForASaveIsToldThatTheDocumentIsGone) {
  UploadWhole(&server_, "book", "text");
  server_.engine().SaveDocuments(std::nullopt);  // never ends
  std::thread waits([this] {
    v1::Document document;
    EXPECT_EQ(Save("book", &document).error_code(), grpc::StatusCode::NOT_FOUND);
  });
  server_.engine().WaitForSave();
  EXPECT_TRUE(Delete("book").ok());
  waits.join();
}

TEST_F(Documents, AWaitForASaveEndsWithItsDeadline) {
  UploadWhole(&server_, "book", "text");
  server_.engine().SaveDocuments(std::nullopt);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::SaveDocumentRequest request;
  request.set_document_id("book");
  v1::Document document;
  EXPECT_EQ(stub_->SaveDocument(&context, request, &document).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(Documents, StatesAreShown) {
  server_.engine().HoldPrefill();
  Upload upload(server_.channel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  EXPECT_TRUE(upload.NextOf(v1::UploadDocumentEvent::kAck).has_ack());
  v1::Document document;
  ASSERT_TRUE(Get("book", &document).ok());
  EXPECT_EQ(document.state(), v1::Document::STATE_UPLOADING);
  EXPECT_EQ(document.size_bytes(), 3u);
  Generate early(server_.channel(), AskDocument("book", "why"));
  const grpc::Status status = early.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).info.reason(), "DOCUMENT_NOT_READY");
  upload.FinishUpload();
  server_.engine().WaitForState("book", DocumentState::kPrefilling);
  ASSERT_TRUE(Get("book", &document).ok());
  EXPECT_EQ(document.state(), v1::Document::STATE_PREFILLING);
  upload.Cancel();
  upload.Finish();
}

}  // namespace
}  // namespace folio::testing
