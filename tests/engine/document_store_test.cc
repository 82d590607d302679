#include "engine/store/document_store.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/store/posix_files.h"
#include "tests/engine/document_store_fixture.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using test::ReadContent;
using test::SegmentBytes;
using test::WriteSegment;

TEST_F(DocumentStoreTest, HoldsDocumentsOverARestart) {
  const DocumentHandle handle = Store("a");
  Store("b/../c");
  const auto before = *store_->Find("a");
  Reopen();
  ASSERT_EQ(store_->List().size(), 2u);
  EXPECT_EQ(store_->usage().num_documents, 2);
  const auto after = *store_->Find("a");
  EXPECT_EQ(*after, *before);
  EXPECT_EQ(after->name, "name of a");
  EXPECT_EQ(after->upload_token, "token");
  EXPECT_EQ(after->tokenizer, Fingerprint{3});
  EXPECT_EQ(after->created_us, 1000);
  EXPECT_EQ(after->text_bytes, 500);
  EXPECT_EQ(after->num_tokens(), 100);
  EXPECT_EQ(after->renditions.at(0).num_tokens, 100);
  EXPECT_EQ(after->renditions.at(0).model, Fingerprint{4});
  const auto content = ReadContent(*store_, *after);
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->tokens, kIds);
  EXPECT_EQ(content->renditions.at("full"), (std::vector{SegmentBytes(1), SegmentBytes(2)}));
  EXPECT_TRUE(ReadContent(*store_, **store_->Find("b/../c")).ok());
  EXPECT_EQ(store_->Find("c").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DocumentStoreTest, ListsByManifestsAlone) {
  for (int n = 0; n < 20; ++n) Store("document" + std::to_string(n));
  std::set<std::string> read;
  files_.set_fault([&](const std::string& operation, const std::string& path) {
    if (operation == "read") read.insert(path.substr(path.rfind('/') + 1));
    return absl::OkStatus();
  });
  Reopen();
  files_.set_fault({});
  EXPECT_EQ(store_->List().size(), 20u);
  EXPECT_EQ(read, (std::set<std::string>{"folio-store", "manifest"}));
}

TEST_F(DocumentStoreTest, WithoutACommitThereIsNoDocument) {
  {
    auto writer = Begin("a");
    ASSERT_TRUE(writer->AppendTokens(kIds, kOffsets, 1).ok());
    EXPECT_TRUE(store_->List().empty());
    EXPECT_EQ(store_->Find("a").status().code(), absl::StatusCode::kNotFound);
    NewDocument other;
    other.handle = {"a", 2};
    EXPECT_EQ(store_->Begin(other).status().code(), absl::StatusCode::kAlreadyExists);
  }
  store_->EmptyTrash();
  EXPECT_EQ(store_->usage().bytes.total(), 0);
  EXPECT_EQ(files_.BytesBelow("documents") + files_.BytesBelow("trash"), 0);
  EXPECT_NE(Begin("a"), nullptr);
}

TEST_F(DocumentStoreTest, AnUploadGoesOnAfterItsLastCommit) {
  auto writer = Begin("a");
  ASSERT_TRUE(writer->AppendTokens(kIds, kOffsets, 500).ok());
  ASSERT_TRUE(writer->Commit(StoredState::kReceiving, {}).ok());
  ASSERT_TRUE(writer->AppendTokens(kIds, kOffsets, 900).ok());  // never committed
  EXPECT_EQ(store_->Resume({"a", 1}).status().code(), absl::StatusCode::kFailedPrecondition);
  writer.reset();
  Reopen();
  writer = *store_->Resume({"a", 1});
  EXPECT_EQ(writer->num_tokens(), 100);
  EXPECT_EQ(writer->text_bytes(), 500);
  const std::vector<int32_t> more = {1, 2, 3};
  ASSERT_TRUE(writer->AppendTokens(more, std::vector<int64_t>{500, 501, 502}, 503).ok());
  ASSERT_TRUE(writer->Commit(StoredState::kComplete, {}).ok());
  std::vector<int32_t> all = kIds;
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_EQ(*store_->ReadTokens({"a", 1}), all);
  EXPECT_EQ(store_->ReadOffsets({"a", 1})->back(), 502);
  EXPECT_EQ((*store_->Find("a"))->state, StoredState::kComplete);
}

TEST_F(DocumentStoreTest, RefusesIdsThatAreNone) {
  for (const std::string& id : {std::string(), std::string("a\n"), std::string(2000, 'a')}) {
    NewDocument document;
    document.handle = {id, 1};
    EXPECT_EQ(store_->Begin(document).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(DocumentStoreTest, WhatWasMeantForADeletedDocumentReachesNoOther) {
  const DocumentHandle old = Store("a", 1);
  auto writer = *store_->Resume(old);
  const int64_t rendition = *writer->RenditionOf({4}, "full");
  auto draft = writer->AddSegment(rendition, test::kTestShape, {});
  ASSERT_TRUE(draft.ok());
  const auto segment = (*store_->Find("a"))->renditions[0].segments[0];
  const auto opened = store_->OpenSegment(old, rendition, segment);
  ASSERT_TRUE(store_->Delete(old).ok());
  EXPECT_TRUE(store_->List().empty());
  Store("a", 2);
  store_->EmptyTrash();
  const auto gone = absl::StatusCode::kNotFound;
  EXPECT_EQ(store_->Delete(old).code(), gone);
  EXPECT_EQ(store_->ReadTokens(old).status().code(), gone);
  EXPECT_EQ(store_->OpenSegment(old, rendition, segment).status().code(), gone);
  EXPECT_EQ(store_->UpdateAttributes(old, [](auto*) {}).code(), gone);
  EXPECT_EQ(store_->Resume(old).status().code(), gone);
  EXPECT_EQ(writer->AddSegment(rendition, test::kTestShape, {}).status().code(), gone);
  EXPECT_EQ(writer->RenditionOf({4}, "other").status().code(), gone);
  EXPECT_EQ(writer->Commit(StoredState::kReceiving, {}).code(), gone);
  // What was opened before stays readable.
  EXPECT_EQ(*test::ReadSegment(*opened), SegmentBytes(1));
  draft->Finish().status().IgnoreError();
  writer.reset();
  EXPECT_TRUE(ReadContent(*store_, **store_->Find("a")).ok());
  EXPECT_EQ(store_->usage().bytes.documents, files_.BytesBelow("documents"));
}

TEST_F(DocumentStoreTest, SegmentsThatWereNotFinishedAreNotCommitted) {
  auto writer = Begin("a");
  StoredRendition rendition;
  rendition.number = *writer->RenditionOf({}, "full");
  rendition.attention = "full";
  auto draft = writer->AddSegment(rendition.number, test::kTestShape, {});
  ASSERT_TRUE(draft.ok());
  rendition.segments.push_back({1, test::kTestShape, {}});
  EXPECT_EQ(writer->Commit(StoredState::kReceiving, {&rendition, 1}).code(),
            absl::StatusCode::kFailedPrecondition);
  rendition.segments = {*WriteSegment(writer.get(), rendition.number, 1)};
  rendition.segments[0].key[0] ^= 1;
  EXPECT_EQ(writer->Commit(StoredState::kReceiving, {&rendition, 1}).code(),
            absl::StatusCode::kFailedPrecondition);
  rendition.segments[0].key[0] ^= 1;
  EXPECT_TRUE(writer->Commit(StoredState::kReceiving, {&rendition, 1}).ok());
  rendition.number = 77;
  EXPECT_EQ(writer->Commit(StoredState::kReceiving, {&rendition, 1}).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DocumentStoreTest, ADroppedRenditionIsGoneAndItsDocumentStays) {
  const DocumentHandle handle = Store("a");
  const auto number = (*store_->Find("a"))->renditions[0].number;
  auto writer = *store_->Resume(handle);
  const auto segment = WriteSegment(writer.get(), number, 3);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(store_->DropRendition(handle, number + 1).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_->DropRendition(handle, number).ok());
  // The writer learns of it, and can begin it again.
  StoredRendition rendition = {number, {4}, "full", 0, {*segment}};
  EXPECT_EQ(writer->Commit(StoredState::kComplete, {&rendition, 1}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_NE(*writer->RenditionOf({4}, "full"), number);
  EXPECT_TRUE(writer->Commit(StoredState::kComplete, {}).ok());
  writer.reset();
  EXPECT_GT(store_->EmptyTrash(), 0);
  Reopen();
  EXPECT_TRUE((*store_->Find("a"))->renditions.empty());
  EXPECT_EQ(*store_->ReadTokens(handle), kIds);
  EXPECT_EQ(store_->usage().bytes.total(), files_.BytesBelow("documents"));
}

TEST_F(DocumentStoreTest, TheQuotaIsKeptWithTheArithmetic) {
  store_.reset();
  quota_bytes_ = 103'000;
  Reopen();
  const DocumentHandle handle = Store("a");
  const int64_t before = store_->usage().bytes.documents;
  EXPECT_LE(before, quota_bytes_);
  auto writer = *store_->Resume(handle);
  const int64_t rendition = *writer->RenditionOf({4}, "full");
  absl::Status status;
  int num_segments = 0;
  while (status.ok() && ++num_segments < 100) {
    status = WriteSegment(writer.get(), rendition, 1).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("of 103000 are taken"), std::string::npos) << status;
  EXPECT_LE(files_.BytesBelow("documents"), quota_bytes_);
  // The writer goes on with what fits; what was not committed makes room again.
  EXPECT_TRUE(writer->AppendTokens(kIds, kOffsets, 500).ok());
  EXPECT_TRUE(writer->Commit(StoredState::kComplete, {}).ok());
  writer.reset();
  EXPECT_GT(store_->usage().bytes.trash, 0);
  store_->EmptyTrash();
  writer = *store_->Resume(handle);
  EXPECT_TRUE(WriteSegment(writer.get(), *writer->RenditionOf({4}, "full"), 1).ok());
  // Tokens beyond it are kept until there is room.
  const std::vector<int32_t> many(30'000, 1);
  ASSERT_TRUE(writer->AppendTokens(many, std::vector<int64_t>(many.size()), 501).ok());
  EXPECT_EQ(writer->Commit(StoredState::kComplete, {}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->ReadTokens(handle)->size(), 200u);
}

TEST_F(DocumentStoreTest, AttributesAreDurable) {
  const DocumentHandle handle = Store("a");
  const int64_t updated_us = (*store_->Find("a"))->updated_us;
  ASSERT_TRUE(store_
                  ->UpdateAttributes(handle,
                                     [](DocumentAttributes* attributes) {
                                       attributes->labels["team"] = "law";
                                       attributes->ttl_us = 60'000'000;
                                       attributes->pinned = true;
                                       attributes->last_used_us = 77;
                                     })
                  .ok());
  EXPECT_EQ(store_->UpdateAttributes(handle, [](auto* one) { one->ttl_us = -1; }).code(),
            absl::StatusCode::kInvalidArgument);
  files_.LosePower();
  Reopen();
  const auto manifest = *store_->Find("a");
  EXPECT_EQ(manifest->attributes.labels.at("team"), "law");
  EXPECT_EQ(manifest->attributes.ttl_us, 60'000'000);
  EXPECT_TRUE(manifest->attributes.pinned);
  EXPECT_EQ(manifest->attributes.last_used_us, 77);
  EXPECT_EQ(manifest->updated_us, updated_us);
}

TEST_F(DocumentStoreTest, OnlyAStoreOfThisFormatIsOpened) {
  const auto code = [](test::MemoryFiles* files) {
    return DocumentStore::Open(files, {}).status().code();
  };
  const auto refused = absl::StatusCode::kFailedPrecondition;
  *files_.content("folio-store") = "folio-store 2\n";
  EXPECT_EQ(code(&files_), refused);
  *files_.content("folio-store") = "folio-store 1";
  EXPECT_EQ(code(&files_), refused);
  test::MemoryFiles home;
  ASSERT_TRUE(home.Create("letters.txt").ok());
  EXPECT_EQ(code(&home), refused);
  EXPECT_EQ(home.paths(), std::vector<std::string>{"letters.txt"});
  test::MemoryFiles mount;
  ASSERT_TRUE(mount.MakeDirectory("lost+found").ok());
  ASSERT_TRUE(mount.Create("lock").ok());
  EXPECT_EQ(code(&mount), absl::StatusCode::kOk);
}

TEST_F(DocumentStoreTest, IsSafeForManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (int n = 0; n < 50; ++n) {
        const std::string id = "document" + std::to_string((thread + n) % 3);
        NewDocument document;
        document.handle = {id, static_cast<uint64_t>(thread * 1000 + n)};
        if (auto writer = store_->Begin(document); writer.ok()) {
          (*writer)->AppendTokens(kIds, kOffsets, 5).IgnoreError();
          (*writer)->Commit(StoredState::kComplete, {}).IgnoreError();
        }
        if (const auto found = store_->Find(id); found.ok()) {
          const DocumentHandle handle = {id, (*found)->incarnation};
          const auto tokens = store_->ReadTokens(handle);
          if (tokens.ok()) {
            EXPECT_EQ(*tokens, kIds);
          }
          if (!tokens.ok()) {
            EXPECT_TRUE(absl::IsNotFound(tokens.status())) << tokens.status();
          }
          store_->UpdateAttributes(handle, [](auto* one) { one->pinned = true; }).IgnoreError();
          if (n % 3 == 0) store_->Delete(handle).IgnoreError();
        }
        if (thread == 0) store_->EmptyTrash();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_->EmptyTrash();
  EXPECT_EQ(store_->usage().bytes.documents, files_.BytesBelow("documents"));
  EXPECT_EQ(store_->usage().num_unremovable, 0);
}

TEST(DocumentStoreOnDisk, HoldsDocumentsOverARestart) {
  const ScratchDir parent;
  const std::string directory = parent.path() + "/store";
  for (int round = 0; round < 2; ++round) {
    auto files = OpenPosixFiles(directory);
    ASSERT_TRUE(files.ok()) << files.status();
    auto store = DocumentStore::Open(files->get(), {});
    ASSERT_TRUE(store.ok()) << store.status();
    for (const auto& old : (*store)->List()) {
      const auto content = ReadContent(**store, *old);
      ASSERT_TRUE(content.ok()) << content.status();
      EXPECT_EQ(content->renditions.at("full"), std::vector{SegmentBytes(5)});
      EXPECT_TRUE((*store)->Delete({old->id, old->incarnation}).ok());
    }
    EXPECT_EQ((*store)->EmptyTrash(), round);
    NewDocument document;
    document.handle = {"../a", 1};
    auto writer = (*store)->Begin(document);
    ASSERT_TRUE(writer.ok()) << writer.status();
    StoredRendition rendition;
    rendition.number = *(*writer)->RenditionOf({}, "full");
    rendition.attention = "full";
    rendition.segments = {*WriteSegment(writer->get(), rendition.number, 5)};
    ASSERT_TRUE((*writer)->AppendTokens(std::vector{1, 2}, std::vector<int64_t>{0, 1}, 2).ok());
    EXPECT_TRUE((*writer)->Commit(StoredState::kComplete, {&rendition, 1}).ok());
  }
}

}  // namespace
}  // namespace folio
