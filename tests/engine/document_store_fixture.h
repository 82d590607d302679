#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/document_store.h"
#include "tests/engine/memory_files.h"
#include "tests/engine/random_owner.h"

namespace folio {

// A store in memory whose files a test can change.
class DocumentStoreTest : public ::testing::Test {
 protected:
  DocumentStoreTest() { Reopen(); }
  void Reopen() {
    store_.reset();
    auto store = DocumentStore::Open(
        &files_, {.quota_bytes = quota_bytes_, .now_us = [this] { return now_us_++; }});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::unique_ptr<DocumentWriter> Begin(const std::string& id, uint64_t incarnation = 1) {
    NewDocument document;
    document.handle = {id, incarnation};
    document.name = "name of " + id;
    document.upload_token = "token";
    document.tokenizer = {3};
    auto writer = store_->Begin(document);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  // 100 tokens and a rendition of two segments.
  DocumentHandle Store(const std::string& id, uint64_t incarnation = 1) {
    auto writer = Begin(id, incarnation);
    EXPECT_TRUE(writer->AppendTokens(kIds, kOffsets, 500).ok());
    StoredRendition rendition;
    rendition.number = *writer->RenditionOf({4}, "full");
    rendition.model = {4};
    rendition.attention = "full";
    rendition.num_tokens = 100;
    for (const uint64_t seed : {1, 2}) {
      rendition.segments.push_back(*test::WriteSegment(writer.get(), rendition.number, seed));
    }
    EXPECT_TRUE(writer->Commit(StoredState::kComplete, {&rendition, 1}).ok());
    return writer->handle();
  }
  std::string PathIn(const std::string& id, const std::string& end) {
    for (const std::string& path : files_.paths()) {
      if (path.starts_with("documents/" + id + "/") && path.ends_with(end)) return path;
    }
    return "";
  }

  const std::vector<int32_t> kIds = std::vector<int32_t>(100, 9);
  const std::vector<int64_t> kOffsets = std::vector<int64_t>(100, 0);
  test::MemoryFiles files_;
  int64_t quota_bytes_ = int64_t{1} << 40;
  std::atomic<int64_t> now_us_ = 1000;  // a store asks from every thread that uses it
  std::unique_ptr<DocumentStore> store_;
};

}  // namespace folio
