// Files that are damaged, torn, foreign or cannot be removed.

#include <gtest/gtest.h>

#include "tests/engine/document_store_fixture.h"

namespace folio {
namespace {

using test::ReadContent;

constexpr auto kLost = absl::StatusCode::kDataLoss;

using DocumentStoreDamageTest = DocumentStoreTest;

TEST_F(DocumentStoreDamageTest, DamagedSegmentsAreNoticedAndPutAside) {
  const DocumentHandle handle = Store("a");
  const StoredRendition rendition = (*store_->Find("a"))->renditions[0];
  const std::string path = "documents/a/" + std::to_string(rendition.number) + "/" +
                           std::to_string(rendition.segments[1].file);
  (*files_.content(path))[0] ^= 1;
  EXPECT_EQ(ReadContent(*store_, **store_->Find("a")).status().code(), kLost);
  ASSERT_TRUE(store_->Quarantine(handle, rendition.number).ok());
  EXPECT_EQ(store_->usage().num_quarantined, 1);
  EXPECT_EQ(store_->usage().bytes.quarantine, files_.BytesBelow("quarantine"));
  EXPECT_GT(store_->usage().bytes.quarantine, 0);
  EXPECT_TRUE((*store_->Find("a"))->renditions.empty());
  EXPECT_EQ(*store_->ReadTokens(handle), kIds);
  ASSERT_TRUE(store_->QuarantineDocument(handle).ok());
  EXPECT_TRUE(store_->List().empty());
  // A missing file is damage too.
  Store("b");
  const StoredRendition other = (*store_->Find("b"))->renditions[0];
  ASSERT_TRUE(files_.Remove(PathIn("b", "/" + std::to_string(other.segments[0].file))).ok());
  EXPECT_EQ(ReadContent(*store_, **store_->Find("b")).status().code(), kLost);
}

TEST_F(DocumentStoreDamageTest, TheQuarantineIsBounded) {
  for (int n = 0; n < 20; ++n) ASSERT_TRUE(store_->QuarantineDocument(Store("a")).ok());
  store_->EmptyTrash();
  EXPECT_EQ(files_.List("quarantine")->size(), TrashCan::kMaxQuarantined);
  EXPECT_EQ(store_->usage().num_quarantined, 20);
  EXPECT_EQ(store_->usage().bytes.quarantine, files_.BytesBelow("quarantine"));
  Reopen();
  EXPECT_EQ(store_->usage().bytes.quarantine, files_.BytesBelow("quarantine"));
}

TEST_F(DocumentStoreDamageTest, OneTornOrForeignManifestDoesNotStopTheOthers) {
  for (const char* id : {"a", "b", "c", "d"}) Store(id);
  files_.content("documents/a/manifest")->resize(50);
  ++(*files_.content("documents/b/manifest"))[8];  // a later version
  *files_.content("documents/c/manifest") = *files_.content("documents/d/manifest");
  ASSERT_TRUE(files_.MakeDirectory("documents/e").ok());
  ASSERT_TRUE(files_.Create("documents/e/tokens").ok());
  ASSERT_TRUE(files_.Create("documents/d/unknown").ok());
  ASSERT_TRUE(files_.Create("documents/d/manifest.tmp").ok());
  ASSERT_TRUE(files_.Create("documents/plain file").ok());
  Reopen();
  ASSERT_EQ(store_->List().size(), 1u);
  EXPECT_TRUE(ReadContent(*store_, **store_->Find("d")).ok());
  EXPECT_EQ(store_->usage().num_quarantined, 3);
  EXPECT_EQ(store_->EmptyTrash(), 4);
  EXPECT_EQ(files_.List("documents")->size(), 1u);
  EXPECT_EQ(files_.List("documents/d")->size(), 4u);  // manifest, tokens, offsets, a rendition
  EXPECT_NE(Begin("a"), nullptr);
}

TEST_F(DocumentStoreDamageTest, WhatCannotBeRemovedIsSkippedAndCounted) {
  const DocumentHandle a = Store("a");
  const DocumentHandle b = Store("b");
  ASSERT_TRUE(store_->Delete(a).ok());
  ASSERT_TRUE(store_->Delete(b).ok());
  int num_removed = 0;
  files_.set_fault([&](const std::string& operation, const std::string&) {
    const bool fails = operation == "remove" && ++num_removed == 1;
    return fails ? absl::PermissionDeniedError("EPERM") : absl::OkStatus();
  });
  EXPECT_EQ(store_->EmptyTrash(), 1);
  EXPECT_EQ(store_->usage().num_unremovable, 1);
  EXPECT_GT(store_->usage().bytes.trash, 0);
  EXPECT_EQ(store_->EmptyTrash(), 1);
  EXPECT_EQ(store_->usage().num_unremovable, 0);
  EXPECT_EQ(store_->usage().bytes.total(), 0);
}

// Each byte of each file, flipped: what is read is right, or it is an error, or the document is not
// there.
TEST_F(DocumentStoreDamageTest, NoFlippedByteIsReadAsIfItWereRight) {
  const DocumentHandle handle = Store("a");
  const auto expected = ReadContent(*store_, **store_->Find("a"));
  ASSERT_TRUE(expected.ok());
  store_.reset();
  int num_noticed = 0;
  for (const std::string& path : files_.paths()) {
    if (path == "folio-store") continue;
    const std::string whole = *files_.content(path);
    // Padding is large: a few bytes of it are enough.
    for (size_t at = 0; at<whole.size(); at += at % 4096> 200 ? 97 : 1) {
      (*files_.content(path))[at] = static_cast<char>(whole[at] ^ (1 << (at % 8)));
      Reopen();
      const auto found = store_->Find("a");
      const auto read =
          found.ok() ? ReadContent(*store_, **found)
                     : absl::StatusOr<test::DocumentContent>(absl::DataLossError("quarantined"));
      if (read.ok()) {
        ASSERT_EQ(*read, *expected) << path << " " << at;
      } else {
        ASSERT_EQ(read.status().code(), kLost) << path << " " << at << read.status();
        ++num_noticed;
      }
      if (!found.ok()) {
        EXPECT_EQ(store_->usage().num_quarantined, 1);
        const auto entries = files_.List("quarantine");
        for (const DirectoryEntry& entry : *entries) {
          ASSERT_TRUE(files_.Rename("quarantine/" + entry.name, "documents/a").ok());
        }
      }
      *files_.content(path) = whole;
      store_.reset();
    }
  }
  EXPECT_GT(num_noticed, 800);
  Reopen();
  EXPECT_EQ(*ReadContent(*store_, **store_->Find("a")), *expected);
}

}  // namespace
}  // namespace folio
