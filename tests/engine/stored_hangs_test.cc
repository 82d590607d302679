// Stored documents of the real engine on a disk that hangs.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/hanging_files.h"
#include "tests/engine/stored_documents_fixture.h"

namespace folio::test {
namespace {

class StoredHangs : public StoredDocuments {
 protected:
  StoredHangs() {
    options_.read_deadline = std::chrono::seconds(2);
    options_.wrap_files = [hang = hang_](std::unique_ptr<FileSystem> files) {
      return std::make_unique<HangingFiles>(std::move(files), hang);
    };
    Restart();
  }
  ~StoredHangs() override { hang_->End(); }

  // Where the segments of a document lie.
  std::string CacheOf(const std::string& id) const {
    const auto path = SegmentsOf(id).at(0).parent_path();
    return "documents/" + id + "/" + path.filename().string() + "/";
  }

  const std::shared_ptr<Hang> hang_ = std::make_shared<Hang>();
};

TEST_F(StoredHangs, AQuestionGivesUpOnItsDocumentAndOthersAreAnswered) {
  for (const char* id : {"book", "other"}) UploadAndSave(id, "long_heads");
  for (const std::string& part : {std::string("documents/book/tokens"), CacheOf("book")}) {
    SCOPED_TRACE(part);
    Restart();
    hang_->Begin(part);
    const auto answer = Submit("book");
    hang_->WaitForReads(1);
    EXPECT_EQ(CachedTokens("other"), kDocumentTokens);
    answer->WaitForEnd();
    EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
    EXPECT_EQ(Ask("book")->status().code(), absl::StatusCode::kUnavailable);
    hang_->End();
    EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
  }
}

// Of four documents two are being read, the others wait for a thread.
TEST_F(StoredHangs, AQuestionThatWaitsBehindSuchReadsGivesUpToo) {
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  for (const std::string& id : ids) UploadAndSave(id, "long_heads");
  Restart();
  hang_->Begin("/tokens");
  std::vector<std::shared_ptr<Recorder>> answers;
  for (const std::string& id : ids) answers.push_back(Submit(id));
  for (const auto& answer : answers) {
    answer->WaitForEnd();
    EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
  }
  hang_->End();
  for (const std::string& id : ids) EXPECT_EQ(CachedTokens(id), kDocumentTokens);
}

TEST_F(StoredHangs, AnUploadIsToldAndGoesOnLater) {
  const std::vector<int32_t> tokens = TokensOf(3);
  const auto first = std::vector<int32_t>(tokens.begin(), tokens.begin() + 605);
  const auto rest = std::vector<int32_t>(tokens.begin() + 605, tokens.end());
  for (const std::string id : {"tokens", "cache"}) {
    SCOPED_TRACE(id);
    const DocumentHandle handle = Open(id, "long_heads");
    const auto before = std::make_shared<Recorder>();
    ASSERT_TRUE(engine_->FollowDocument(handle, before).ok());
    ASSERT_TRUE(engine_->AppendToDocument(handle, first, 2000).ok());
    while (engine_->GetDocument(id)->prefilled_tokens < 605) std::this_thread::yield();
    engine_->PauseDocument(handle);
    while (engine_->GetDocument(id)->saved_text_bytes < 2000) std::this_thread::yield();
    Restart();
    hang_->Begin(id == "tokens" ? "documents/tokens/tokens" : CacheOf(id));
    const auto sink = std::make_shared<Recorder>();
    ASSERT_TRUE(engine_->FollowDocument(handle, sink).ok());
    ASSERT_TRUE(engine_->AppendToDocument(handle, rest, 4321).ok());
    sink->WaitForEnd();
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kUnavailable) << sink->status();
    EXPECT_EQ(engine_->GetDocument(id)->state, DocumentState::kUploading);
    hang_->End();
    const auto again = std::make_shared<Recorder>();
    ASSERT_TRUE(engine_->FollowDocument(handle, again).ok());
    ASSERT_TRUE(engine_->FinishDocument(handle).ok());
    again->WaitForEnd();
    EXPECT_TRUE(again->completed().has_value()) << again->status();
    EXPECT_EQ(CachedTokens(id), kDocumentTokens);
  }
}

// Each of these ends because the engine does.
TEST_F(StoredHangs, TheEngineStopsThoughADocumentIsBeingLoaded) {
  UploadAndSave("book", "long_heads");
  Restart();
  hang_->Begin("/tokens");
  const auto answer = Submit("book");
  hang_->WaitForReads(1);
  engine_.reset();
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
}

TEST_F(StoredHangs, TheEngineStopsThoughAPageIsBeingRead) {
  UploadAndSave("book", "full");
  Restart();
  const auto answer = Submit("book", 2000);
  answer->WaitForTokens(1);
  hang_->Begin("documents/book/");
  hang_->WaitForReads(1);
  engine_.reset();
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
}

TEST_F(StoredHangs, WhatIsBeingSavedIsExpectedToLeaveMemory) {
  const auto fit_of = [this](int64_t num_tokens) {
    return engine_->EstimateDocument(Resolved("full"), num_tokens, {})->fit;
  };
  const int64_t all_but_some = options_.kv_disk_bytes / 4096 - kDocumentTokens / 2;
  EXPECT_EQ(fit_of(all_but_some), Estimate::Fit::kNow);
  hang_->Begin("documents/book/manifest");
  Upload("book", "full");
  hang_->WaitForReads(1);
  EXPECT_EQ(fit_of(all_but_some), Estimate::Fit::kWhenIdle);
  hang_->End();
  while (fit_of(all_but_some) != Estimate::Fit::kNow) std::this_thread::yield();
  EXPECT_TRUE(WaitUntilSaved("book").saved);
  // This one stays: the store has no room for it.
  options_.store_bytes = int64_t{1} << 20;
  options_.kv_dir = dir_.path() + "/small";
  Restart();
  const DocumentHandle stays = Upload("large", "full");
  while (fit_of(all_but_some) != Estimate::Fit::kNever) std::this_thread::yield();
  EXPECT_FALSE(WaitUntilSaved("large").save_error.ok());
  ASSERT_TRUE(engine_->DeleteDocument(stays).ok());
  while (fit_of(all_but_some) != Estimate::Fit::kNow) std::this_thread::yield();
}

}  // namespace
}  // namespace folio::test
