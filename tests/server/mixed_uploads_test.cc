// Clients that upload, resume, abandon, delete and ask about documents of the same few ids, at
// random: whatever the engine holds under an id is the text of exactly one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/engine/test_seed.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

constexpr int kClients = 4;
constexpr int kSteps = 10000;
const std::string kIds[] = {"x", "y", "z"};

class RandomClient {
 public:
  RandomClient(TestServer* server, int number)
      : letter_(static_cast<char>('a' + number)),
        token_(std::string("the secret of client ") + letter_),
        random_(test::TestSeed() + number),
        channel_(server->TcpChannel()),
        documents_(v1::Documents::NewStub(channel_)) {}

  // Text of `size` bytes of which every word shows whose it is.
  static std::string Text(char letter, uint64_t size) {
    std::string text(size, letter);
    for (uint64_t n = 5; n < size; n += 6) text[n] = ' ';
    return text;
  }
  // Whether it is the text of one client from its beginning.
  static bool IsOnes(const std::string& text) {
    return text.empty() || text == Text(text.front(), text.size());
  }

  void Step() {
    const std::string& id = kIds[Below(3)];
    switch (Below(6)) {
      case 0:
        return Delete(id);
      case 1:
        return Ask(id);
      case 2:
        return Get(id);
      default:
        return Send(id);
    }
  }

  int num_answers() const { return num_answers_; }
  int num_finished() const { return num_finished_; }

 private:
  int Below(int bound) { return static_cast<int>(random_() % bound); }

  void Send(const std::string& id) {
    Upload upload(channel_);
    v1::DocumentHeader header;
    header.set_document_id(id);
    header.set_upload_token(token_);
    header.set_detach(Below(2) == 0);
    upload.Header(header);
    const v1::UploadDocumentEvent created = upload.Next();
    if (created.has_created()) SendParts(created.created().next_offset(), &upload);
    const grpc::Status status = upload.Finish();
    num_finished_ += status.ok();
    EXPECT_NE(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
  }

  void SendParts(uint64_t offset, Upload* upload) {
    const uint64_t end = offset + Below(6000);
    const std::string text = Text(letter_, end);
    while (offset < end) {
      const uint64_t size = std::min<uint64_t>(1 + Below(3000), end - offset);
      upload->Chunk(offset, text.substr(offset, size));
      offset += size;
    }
    switch (Below(3)) {
      case 0:
        return upload->Cancel();
      case 1:
        return upload->HalfClose();
      default:
        return offset == 0 ? upload->HalfClose() : upload->FinishUpload(offset);
    }
  }

  void Delete(const std::string& id) {
    grpc::ClientContext context;
    v1::DeleteDocumentRequest request;
    request.set_document_id(id);
    v1::DeleteDocumentResponse response;
    const grpc::Status status = documents_->DeleteDocument(&context, request, &response);
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND);
  }

  void Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetDocumentRequest request;
    request.set_document_id(id);
    v1::Document document;
    const grpc::Status status = documents_->GetDocument(&context, request, &document);
    if (!status.ok()) return;
    EXPECT_EQ(document.document_id(), id);
    EXPECT_LE(document.prefilled_tokens(), document.token_count());
  }

  // The fake engine answers with the text that it was given.
  void Ask(const std::string& id) {
    Generate call(channel_, AskDocument(id, "?"));
    if (Below(4) == 0) call.Cancel();
    std::string text;
    v1::GenerateEvent event = call.Next();
    for (; event.event_case() != v1::GenerateEvent::EVENT_NOT_SET; event = call.Next()) {
      if (event.has_delta()) text += event.delta().text();
    }
    if (!call.Finish().ok()) return;
    ++num_answers_;
    EXPECT_TRUE(IsOnes(text)) << id << ": " << text;
  }

  const char letter_;
  const std::string token_;
  std::mt19937_64 random_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Documents::Stub> documents_;
  int num_answers_ = 0;
  int num_finished_ = 0;
};

TEST(MixedUploads, EveryDocumentIsTheTextOfOneClient) {
  const test::SaysTestSeed seed;
  TestServer server;
  server.engine().AnswerAtOnce();
  std::vector<std::unique_ptr<RandomClient>> clients;
  for (int n = 0; n < kClients; ++n) clients.push_back(std::make_unique<RandomClient>(&server, n));
  std::vector<std::thread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([&client] {
      for (int step = 0; step < kSteps / kClients; ++step) client->Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The checks have seen something.
  for (const auto& client : clients) {
    EXPECT_GT(client->num_answers(), 0);
    EXPECT_GT(client->num_finished(), 0);
  }
  for (const DocumentInfo& document : server.engine().ListDocuments("", 10)) {
    const auto tokens = server.engine().DocumentTokens(document.handle.id);
    EXPECT_TRUE(RandomClient::IsOnes(*server.engine().tokenizer().Decode(tokens)));
  }
}

}  // namespace
}  // namespace folio::testing
