// TTL, pin and labels of documents.
#include <gtest/gtest.h>

#include <thread>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class Attributes : public ::testing::Test {
 protected:
  grpc::Status Update(const v1::UpdateDocumentRequest& request, v1::Document* document = nullptr) {
    grpc::ClientContext context;
    v1::Document ignored;
    return stub_->UpdateDocument(&context, request, document == nullptr ? &ignored : document);
  }
  std::optional<v1::Document> Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetDocumentRequest request;
    request.set_document_id(id);
    v1::Document document;
    if (!stub_->GetDocument(&context, request, &document).ok()) return std::nullopt;
    return document;
  }
  void UploadWith(const v1::DocumentHeader& header) {
    Upload upload(server_.channel());
    upload.Header(header);
    upload.Chunk(0, "some text");
    upload.FinishUpload();
    EXPECT_TRUE(upload.Finish().ok());
  }
  static v1::UpdateDocumentRequest Request(const std::string& id) {
    v1::UpdateDocumentRequest request;
    request.set_document_id(id);
    return request;
  }
  std::vector<std::string> List(const std::map<std::string, std::string>& labels,
                                uint32_t page_size) {
    std::vector<std::string> ids;
    v1::ListDocumentsRequest request;
    request.set_page_size(page_size);
    request.mutable_labels()->insert(labels.begin(), labels.end());
    do {
      grpc::ClientContext context;
      v1::ListDocumentsResponse page;
      EXPECT_TRUE(stub_->ListDocuments(&context, request, &page).ok());
      EXPECT_LE(page.documents_size(), static_cast<int>(page_size));
      for (const v1::Document& document : page.documents()) ids.push_back(document.document_id());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return ids;
  }

  TestServer server_;
  std::unique_ptr<v1::Documents::Stub> stub_ = v1::Documents::NewStub(server_.channel());
};

TEST_F(Attributes, TheHeaderOfAnUploadHasTheFirstOnes) {
  v1::DocumentHeader header;
  header.set_document_id("book");
  header.mutable_ttl()->set_seconds(3600);
  header.mutable_ttl()->set_nanos(500'000'000);
  header.set_pinned(true);
  (*header.mutable_labels())["team"] = "law";
  UploadWith(header);
  const v1::Document book = *Get("book");
  EXPECT_EQ(book.ttl().seconds(), 3600);
  EXPECT_EQ(book.ttl().nanos(), 500'000'000);
  EXPECT_TRUE(book.pinned());
  EXPECT_EQ(book.labels().at("team"), "law");
  EXPECT_GE(book.last_use_time().seconds(), book.create_time().seconds());
  EXPECT_FALSE(book.has_expire_time()) << "it is pinned";
}

TEST_F(Attributes, AnUpdateChangesWhatItNames) {
  UploadWhole(&server_, "book", "text");
  EXPECT_FALSE(Get("book")->has_ttl());
  v1::UpdateDocumentRequest request = Request("book");
  request.mutable_ttl()->set_seconds(60);
  (*request.mutable_set_labels())["team"] = "law";
  (*request.mutable_set_labels())["year"] = "1999";
  v1::Document document;
  ASSERT_TRUE(Update(request, &document).ok());
  EXPECT_EQ(document.ttl().seconds(), 60);
  EXPECT_EQ(document.expire_time().seconds(), document.last_use_time().seconds() + 60);
  request = Request("book");
  request.set_pinned(true);
  request.add_remove_labels("year");
  request.add_remove_labels("never there");
  ASSERT_TRUE(Update(request, &document).ok());
  EXPECT_EQ(document.ttl().seconds(), 60);
  EXPECT_TRUE(document.pinned());
  EXPECT_FALSE(document.has_expire_time());
  EXPECT_EQ(document.labels_size(), 1);
  request = Request("book");
  request.mutable_ttl();
  request.set_pinned(false);
  ASSERT_TRUE(Update(request, &document).ok());
  EXPECT_FALSE(document.has_ttl());
  EXPECT_FALSE(document.pinned());
}

TEST_F(Attributes, BadOnesAreRefusedAllAtOnceAndChangeNothing) {
  UploadWhole(&server_, "book", "text");
  v1::UpdateDocumentRequest request = Request("book");
  request.mutable_ttl()->set_nanos(5);
  (*request.mutable_set_labels())["no key"] = "x";
  (*request.mutable_set_labels())["long"] = std::string(257, 'x');
  const grpc::Status refused = Update(request);
  EXPECT_EQ(DetailsOf(refused).fields().size(), 3u) << refused.error_message();
  for (const int64_t seconds : {int64_t{-1}, int64_t{1} << 40}) {
    request = Request("book");
    request.mutable_ttl()->set_seconds(seconds);
    EXPECT_EQ(DetailsOf(Update(request)).field(), "ttl") << seconds;
  }
  request = Request("book");
  for (int n = 0; n < 64; ++n) (*request.mutable_set_labels())[std::to_string(n)] = "x";
  EXPECT_TRUE(Update(request).ok());
  request.mutable_set_labels()->clear();
  (*request.mutable_set_labels())["one-more"] = "x";
  EXPECT_EQ(DetailsOf(Update(request)).field(), "set_labels");
  EXPECT_EQ(Get("book")->labels_size(), 64);
  EXPECT_EQ(DetailsOf(Update(Request("a b"))).field(), "document_id");
  EXPECT_EQ(Update(Request("nothing")).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::DocumentHeader header;
  header.set_document_id("other");
  header.mutable_ttl()->set_seconds(-1);
  (*header.mutable_labels())[""] = "x";
  Upload upload(server_.channel());
  upload.Header(header);
  EXPECT_EQ(DetailsOf(upload.Finish()).fields(),
            (std::vector<std::string>{"header.ttl", "header.labels"}));
}

TEST_F(Attributes, ADocumentGoesWhenItsTtlIsOver) {
  v1::DocumentHeader header;
  header.mutable_ttl()->set_seconds(100);
  for (const char* id : {"asked", "left"}) {
    header.set_document_id(id);
    UploadWith(header);
  }
  UploadWhole(&server_, "without", "text");
  server_.engine().PassTime(std::chrono::seconds(60));
  Generate call(server_.channel(), AskDocument("asked", "why"));
  server_.engine().WaitForRequest();
  server_.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  server_.engine().PassTime(std::chrono::seconds(60));
  server_.clock().Advance(std::chrono::seconds(1));
  while (Get("left").has_value()) std::this_thread::yield();
  EXPECT_TRUE(Get("asked").has_value());
  EXPECT_TRUE(Get("without").has_value());
}

TEST_F(Attributes, DocumentsAreListedByLabels) {
  for (int n = 0; n < 9; ++n) {
    v1::DocumentHeader header;
    header.set_document_id("doc" + std::to_string(n));
    (*header.mutable_labels())["parity"] = n % 2 == 0 ? "even" : "odd";
    if (n > 4) (*header.mutable_labels())["size"] = "large";
    UploadWith(header);
  }
  using Ids = std::vector<std::string>;
  for (const uint32_t page_size : {1, 2, 3, 100}) {
    EXPECT_EQ(List({{"parity", "odd"}}, page_size), (Ids{"doc1", "doc3", "doc5", "doc7"}));
    EXPECT_EQ(List({{"parity", "odd"}, {"size", "large"}}, page_size), (Ids{"doc5", "doc7"}));
    EXPECT_EQ(List({{"parity", "none"}}, page_size), Ids{});
    EXPECT_EQ(List({}, page_size).size(), 9u);
  }
}

TEST_F(Attributes, AnErrorOfTheDiskIsSaid) {
  UploadWhole(&server_, "book", "text");
  server_.engine().UpdateDocuments(absl::UnavailableError("the disk fails"));
  const grpc::Status failed = Update(Request("book"));
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(failed.error_message(), "the disk fails");
}

TEST_F(Attributes, WhoWaitsForTheDiskWaitsNoLongerThanItsDeadline) {
  UploadWhole(&server_, "book", "text");
  server_.engine().UpdateDocuments(std::nullopt);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::Document document;
  EXPECT_EQ(stub_->UpdateDocument(&context, Request("book"), &document).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

}  // namespace
}  // namespace folio::testing
