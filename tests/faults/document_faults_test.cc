// What disks, deletions, restarts and other tenants do to documents: rows 10 to 15 of
// docs/faults.md.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/engine/hanging_files.h"
#include "tests/engine/memory_files.h"
#include "tests/faults/whole_server.h"
#include "tests/scratch_dir.h"

namespace folio::testing {
namespace {

namespace fs = std::filesystem;

// With a directory for documents.
server::ServerOptions OnDisk(const ScratchDir& dir) {
  server::ServerOptions options = WholeOptions();
  options.engine.kv_dir = dir.Path("kv");
  options.engine.kv_disk_bytes = int64_t{64} << 20;
  options.engine.store_bytes = int64_t{64} << 20;
  options.engine.read_deadline = std::chrono::seconds(2);
  return options;
}

void WaitUntilSaved(const TestServer& server, const std::string& id) {
  while (!FindDocument(server, id)->saved()) std::this_thread::yield();
}

// Every 2 KiB of every file of stored documents, but for their manifests.
void DamageFiles(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < 10'000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 4100; at + 8 < entry.file_size(); at += 2048) {
      file.seekp(static_cast<std::streamoff>(at));
      file << "damaged";
    }
  }
}

// What the disk gives back wrong is noticed and computed again: the answer is the same.
TEST(Faults, CorruptCopies) {
  const ScratchDir dir;
  std::string before;
  {
    WholeServer server(OnDisk(dir));
    UploadWhole(&server, "book", BookText(6000));
    before = AnswerOf(server, Question("book", 20)).text;
    WaitUntilSaved(server, "book");
  }
  DamageFiles(dir.Path("kv/store/documents/book"));
  WholeServer server(OnDisk(dir));
  const Answer answer = AnswerOf(server, Question("book", 20));
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, before);
  EXPECT_GE(server.Metric("folio_documents_quarantined_total"), 1);
}

// A disk that is full is the document's error, and its questions are answered from memory; one that
// hangs ends the questions that need it, and no others.
TEST(Faults, DiskFaults) {
  const ScratchDir dir;
  {
    const auto full = std::make_shared<std::atomic<bool>>(false);
    server::ServerOptions options = OnDisk(dir);
    options.engine.wrap_files = [full](std::unique_ptr<FileSystem>) {
      auto files = std::make_unique<test::MemoryFiles>();
      files->set_fault([full](const std::string& operation, const std::string&) {
        return *full && operation == "write"
                   ? absl::ResourceExhaustedError("no space left on device")
                   : absl::OkStatus();
      });
      return files;
    };
    WholeServer server(options);
    *full = true;
    UploadWhole(&server, "book", BookText(6000));
    while (FindDocument(server, "book")->save_error().empty()) std::this_thread::yield();
    EXPECT_NE(FindDocument(server, "book")->save_error().find("no space left"), std::string::npos);
    EXPECT_TRUE(AnswerOf(server, Question("book")).status.ok());
    EXPECT_GE(server.Metric(R"(folio_document_saves_total{result="failed"})"), 1);
  }
  const auto hang = std::make_shared<test::Hang>();
  server::ServerOptions options = OnDisk(dir);
  options.engine.wrap_files = [hang](std::unique_ptr<FileSystem> files) {
    return std::make_unique<test::HangingFiles>(std::move(files), hang);
  };
  {
    WholeServer server(options);
    for (const char* id : {"book", "other"}) {
      UploadWhole(&server, id, BookText(6000));
      WaitUntilSaved(server, id);
    }
  }
  WholeServer server(options);
  hang->Begin("documents/book/");
  Generate stuck(server.channel(), Question("book"));
  hang->WaitForReads(1);
  EXPECT_TRUE(AnswerOf(server, Question("other")).status.ok());
  EXPECT_EQ(stuck.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  hang->End();
  EXPECT_TRUE(AnswerOf(server, Question("book")).status.ok());
}

TEST(Faults, DocumentDeletedWhileAsked) {
  WholeServer server;
  UploadWhole(&server, "book", BookText(4000));
  const std::string whole = AnswerOf(server, Question("book", 300)).text;
  Generate asked(server.channel(), Question("book", 300));
  std::string text;
  while (text.empty()) text = asked.Next().delta().text();
  EXPECT_TRUE(DeleteDocument(server, "book").ok());
  EXPECT_EQ(AnswerOf(server, Question("book")).status.error_code(), grpc::StatusCode::NOT_FOUND);
  const Answer rest = ReadAll(&asked);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(text + rest.text, whole);
  EXPECT_EQ(server.KvUsedWhenIdle(), 0);
}

// What a tenant has of a text is nothing that another finds in the cache.
TEST(Faults, TwoTenantsSameText) {
  const ScratchDir dir;
  server::ServerOptions options = WholeOptions();
  // Of "alpha" and "beta".
  options.tenants = dir.Write("tenants.json", R"({"tenants": {
    "a": {"token_sha256": ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]},
    "b": {"token_sha256": ["f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"]}}})");
  WholeServer server(options);
  const auto upload = [&](const std::string& token, const std::string& id) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    const auto stub = v1::Documents::NewStub(server.channel());
    const auto stream = stub->UploadDocument(&context);
    v1::UploadDocumentRequest request;
    request.mutable_header()->set_document_id(id);
    stream->Write(request);
    request.mutable_chunk()->set_data(BookText(4000));
    stream->Write(request);
    request.mutable_finish();
    stream->Write(request);
    stream->WritesDone();
    v1::UploadDocumentEvent event;
    while (stream->Read(&event)) {
    }
    EXPECT_TRUE(stream->Finish().ok());
  };
  const auto ask = [&](const std::string& token, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    const auto reader = v1::Inference::NewStub(server.channel())->Generate(&context, request);
    Answer answer;
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      answer.text += event.delta().text();
      if (event.has_completed()) answer.completed = event.completed();
    }
    answer.status = reader->Finish();
    return answer;
  };
  const std::string computed = R"(folio_prompt_tokens_total{source="computed"})";
  const std::string cached = R"(folio_prompt_tokens_total{source="cached"})";
  upload("alpha", "book");
  const double bytes_of_one = server.KvUsedWhenIdle();
  const double tokens_of_one = server.Metric(computed);
  upload("beta", "book");
  EXPECT_EQ(server.KvUsedWhenIdle(), 2 * bytes_of_one);
  EXPECT_EQ(server.Metric(computed), 2 * tokens_of_one);
  const Answer first = ask("alpha", Question("book"));
  const Answer second = ask("beta", Question("book"));
  EXPECT_EQ(first.text, second.text);
  server.WaitUntilIdle();
  const double before = server.Metric(cached);
  // The same prompt without a document, of both.
  v1::GenerateRequest prompt = Work(300, 4);
  EXPECT_EQ(ask("alpha", prompt).completed.usage().cached_tokens(), 0);
  EXPECT_EQ(ask("beta", prompt).completed.usage().cached_tokens(), 0);
  server.WaitUntilIdle();
  EXPECT_EQ(server.Metric(cached), before);
  // And no name of the one is one of the other.
  upload("alpha", "secret");
  EXPECT_EQ(ask("beta", Question("secret")).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

// The first signal drains, the second ends at once what is left; the next process goes on with what
// is on disk.
TEST(Faults, TerminatedDuringPrefill) {
  const ScratchDir dir;
  const std::string text = BookText(190'000);
  server::ServerOptions options = OnDisk(dir);
  options.engine.kv_bytes = options.engine.kv_disk_bytes = int64_t{256} << 20;
  {
    WholeServer server(options);
    Upload upload(server.channel());
    upload.Header("book");
    upload.Chunk(0, text);
    upload.FinishUpload(text.size());
    while (server.Metric(R"(folio_prompt_tokens_total{source="computed"})") == 0) {
    }
    std::atomic<bool> second{false};
    std::thread drain([&] { server.runner().Drain([&] { return second.load(); }); });
    while (server.Get("/readyz").find(" 200 ") != std::string::npos) std::this_thread::yield();
    EXPECT_EQ(AnswerOf(server, Work(5, 5)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
    second = true;
    EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    drain.join();
  }
  WholeServer server(options);
  const auto document = FindDocument(server, "book");
  ASSERT_TRUE(document.has_value());
  EXPECT_EQ(document->size_bytes(), text.size());
  EXPECT_TRUE(AnswerOf(server, Question("book")).status.ok());
}

// There is no call that unloads a model: that is the end of its process.
TEST(Faults, ModelUnloadedWithDocuments) {
  server::ServerOptions options = WholeOptions();
  options.drain_seconds = 3600;
  WholeServer server(options);
  UploadWhole(&server, "book", BookText(4000));
  Upload unfinished(server.channel());
  unfinished.Header("unfinished");
  unfinished.Chunk(0, "Now it came to pass");
  unfinished.NextOf(v1::UploadDocumentEvent::kAck);
  Generate asked(server.channel(), Question("book", 200));
  while (!asked.Next().has_delta()) {
  }
  std::atomic<bool> force{false};
  std::thread drain([&] { server.runner().Drain([&] { return force.load(); }); });
  while (server.Get("/readyz").find(" 200 ") != std::string::npos) std::this_thread::yield();
  const Answer refused = AnswerOf(server, Question("book"));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(refused.status).info.reason(), "DRAINING");
  EXPECT_TRUE(ReadAll(&asked).status.ok());
  force = true;
  EXPECT_FALSE(unfinished.Finish().ok());
  drain.join();
}

}  // namespace
}  // namespace folio::testing
