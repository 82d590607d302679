// Uploads of the real engine over restarts: they go on where they were saved last, and answer as if
// nothing had happened.
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/stored_documents_fixture.h"

namespace folio::test {
namespace {

constexpr int kFirstPart = 605;
constexpr int64_t kFirstBytes = 2000;

class StoredUploads : public StoredDocuments {
 protected:
  std::vector<int32_t> Tokens(size_t begin, size_t end) const {
    std::vector<int32_t> tokens(end - begin);
    for (size_t n = begin; n < end; ++n) tokens[n - begin] = 3 + static_cast<int32_t>(n * n % 97);
    return tokens;
  }
  DocumentInfo Info(const std::string& id) const { return *engine_->GetDocument(id); }
  std::shared_ptr<Recorder> Follow(const DocumentHandle& handle) {
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    return sink;
  }
  void Append(const DocumentHandle& handle, size_t begin, size_t end, int64_t text_bytes) {
    const absl::Status status = engine_->AppendToDocument(handle, Tokens(begin, end), text_bytes);
    EXPECT_TRUE(status.ok()) << status;
  }
  void WaitForPrefill(const std::string& id, int64_t num_tokens) const {
    while (Info(id).prefilled_tokens < num_tokens) std::this_thread::yield();
  }
  void WaitForSavedText(const std::string& id, int64_t num_bytes) const {
    while (Info(id).saved_text_bytes < num_bytes) std::this_thread::yield();
  }
  // Its first part is in the cache and on disk, and its client gone.
  DocumentHandle BeginAndLeave(const std::string& id, const std::string& strategy) {
    const DocumentHandle handle = Open(id, strategy);
    const auto sink = Follow(handle);
    Append(handle, 0, kFirstPart, kFirstBytes);
    WaitForPrefill(id, kFirstPart);
    engine_->PauseDocument(handle);
    WaitForSavedText(id, kFirstBytes);
    return handle;
  }
  // The rest of it. Returns how the upload has ended.
  std::shared_ptr<Recorder> GoOn(const std::string& id, size_t begin = kFirstPart,
                                 size_t end = kDocumentTokens) {
    const DocumentHandle handle = Info(id).handle;
    auto sink = Follow(handle);
    Append(handle, begin, end, 4321);
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    return sink;
  }
  void GoOnToTheEnd(const std::string& id) {
    const auto sink = GoOn(id);
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  }
  std::string AnswerInOneGo(const std::string& strategy) {
    Upload("whole " + strategy, strategy);
    return Ask("whole " + strategy)->text();
  }
};

// By --kv-dtype.
class UploadedCaches : public StoredUploads, public testing::WithParamInterface<const char*> {
 protected:
  UploadedCaches() {
    options_.kv_dtype = GetParam();
    Restart();
  }
};
INSTANTIATE_TEST_SUITE_P(, UploadedCaches, testing::Values("bf16", "int8"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(UploadedCaches, GoOnAfterARestartAndPrefillOnlyTheRest) {
  for (const char* strategy : {"full", "long_heads", "lm_infinite", "streaming", "rerope"}) {
    SCOPED_TRACE(strategy);
    const std::string expected = AnswerInOneGo(strategy);
    BeginAndLeave(strategy, strategy);
    Restart();
    const DocumentInfo info = Info(strategy);
    EXPECT_EQ(info.state, DocumentState::kUploading);
    EXPECT_FALSE(info.saved);
    EXPECT_EQ(info.known_tokens, kFirstPart);
    EXPECT_EQ(info.prefilled_tokens, kFirstPart);
    EXPECT_EQ(info.saved_text_bytes, kFirstBytes);
    const auto text = std::static_pointer_cast<Text>(info.attachment);
    EXPECT_EQ(text->text.num_bytes, kFirstBytes);
    EXPECT_FALSE(text->text.whole);
    GoOnToTheEnd(strategy);
    EXPECT_EQ(text->tokens, Tokens(0, kFirstPart));
    EXPECT_EQ(Ask(strategy)->text(), expected);
    EXPECT_EQ(engine_->Stats().prefill_tokens, kDocumentTokens - kFirstPart + 5);
    EXPECT_TRUE(WaitUntilSaved(strategy).saved);
    Restart();
    EXPECT_EQ(CachedTokens(strategy), kDocumentTokens);
    EXPECT_EQ(Ask(strategy)->text(), expected);
  }
}

TEST_F(StoredUploads, AreSavedAsTheyGoOn) {
  const DocumentHandle handle = Open("book", "full");
  const auto sink = Follow(handle);
  Append(handle, 0, 100, 100);
  WaitForPrefill("book", 100);
  EXPECT_EQ(Info("book").saved_text_bytes, 0);  // too little
  constexpr int64_t kMuch = 300 << 10;
  Append(handle, 100, 200, kMuch);
  WaitForSavedText("book", kMuch);
  Restart();
  EXPECT_EQ(Info("book").state, DocumentState::kUploading);
  EXPECT_EQ(Info("book").known_tokens, 200);
}

// Segments that are full stay; pages and summaries behind them are written anew.
TEST_F(StoredUploads, LongOnesAreSavedWithTheirCache) {
  constexpr size_t kCut = 4096;  // 256 pages
  constexpr size_t kFirst = 4200;
  constexpr size_t kTokens = 4700;
  options_.step_tokens = 512;
  options_.kv_bytes = int64_t{16} << 20;
  Restart();
  const auto append = [this](const DocumentHandle& handle, size_t begin, size_t end) {
    Append(handle, begin, end, static_cast<int64_t>(end));
    WaitForPrefill(handle.id, static_cast<int64_t>(end));
  };
  const DocumentHandle handle = Open("book", "long_heads");
  const auto first_sink = Follow(handle);
  append(handle, 0, kFirst);
  while (engine_->Stats().document_saves == 0) std::this_thread::yield();
  Restart();
  const DocumentInfo info = Info("book");
  EXPECT_LE(info.known_tokens, kFirst);
  EXPECT_GE(info.prefilled_tokens, kCut);
  const auto sink = Follow(info.handle);
  append(info.handle, static_cast<size_t>(info.known_tokens), kTokens);
  EXPECT_TRUE(engine_->FinishDocument(info.handle).ok());
  sink->WaitForEnd();
  const std::string answer = Ask("book")->text();
  EXPECT_TRUE(WaitUntilSaved("book").saved) << WaitUntilSaved("book").save_error;
  const auto segments = SegmentsOf("book");
  Restart();
  EXPECT_EQ(SegmentsOf("book"), segments);
  EXPECT_EQ(CachedTokens("book"), kTokens);
  EXPECT_EQ(Ask("book")->text(), answer);
  ASSERT_TRUE(engine_->DeleteDocument(info.handle).ok());
  const DocumentHandle whole = Open("in one go", "long_heads");
  const auto whole_sink = Follow(whole);
  append(whole, 0, kTokens);
  EXPECT_TRUE(engine_->FinishDocument(whole).ok());
  whole_sink->WaitForEnd();
  EXPECT_EQ(Ask("in one go")->text(), answer);
}

TEST_F(StoredUploads, ATextThatIsWholeIsReadyAfterARestartAndCompletedByItself) {
  const std::string expected = AnswerInOneGo("long_heads");
  const DocumentHandle handle = BeginAndLeave("book", "long_heads");
  Append(handle, kFirstPart, kDocumentTokens, 4321);
  EXPECT_TRUE(engine_->FinishDocument(handle).ok());
  WaitForSavedText("book", 4321);
  EXPECT_FALSE(Info("book").saved);
  Restart();
  EXPECT_EQ(Info("book").state, DocumentState::kReady);
  EXPECT_GE(Info("book").prefilled_tokens, kFirstPart);
  WaitForPrefill("book", kDocumentTokens);
  while (engine_->Stats().document_saves == 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().prefill_tokens, kDocumentTokens - kFirstPart);
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
  Restart();
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
  EXPECT_EQ(Ask("book")->text(), expected);
}

// The question waits with the rest of the text until the first part is read.
TEST_F(StoredUploads, AreAskedAboutAsSoonAsTheyAreFinished) {
  const std::string expected = AnswerInOneGo("full");
  BeginAndLeave("book", "full");
  Restart();
  const auto sink = GoOn("book");
  const auto answer = Ask("book");
  ASSERT_TRUE(answer->completed().has_value()) << answer->status();
  EXPECT_EQ(answer->text(), expected);
}

TEST_F(StoredUploads, WhereTheDiskHasNoRoomForTheCacheTheTextIsSaved) {
  const std::string expected = AnswerInOneGo("long_heads");
  options_.store_bytes = int64_t{64} << 10;
  Restart();
  BeginAndLeave("book", "long_heads");
  Restart();
  EXPECT_EQ(Info("book").known_tokens, kFirstPart);
  EXPECT_EQ(Info("book").prefilled_tokens, 0);
  GoOnToTheEnd("book");
  EXPECT_EQ(Ask("book")->text(), expected);
}

// The text of the document takes less of the tenant's part of the disk than that, its pages more.
TEST_F(StoredUploads, TakeNoMoreOfTheDiskThanTheirTenantMayHave) {
  constexpr int64_t kMost = int64_t{64} << 10;
  const Payer payer{std::make_shared<const Tenant>(
      Tenant{.name = "acme", .limits = {.max_stored_bytes = kMost}})};
  const auto open = [&] {
    return engine_->OpenDocument("acme/book", Resolved("full"), nullptr, payer)->handle;
  };
  const DocumentHandle book = open();
  const auto sink = Follow(book);
  Append(book, 0, kFirstPart, kFirstBytes);
  EXPECT_TRUE(engine_->FinishDocument(book).ok());
  sink->WaitForEnd();
  const DocumentInfo info = WaitUntilSaved("acme/book");
  EXPECT_FALSE(info.saved);
  EXPECT_EQ(info.save_error.GetPayload(kLimitPayload), "tenant.stored_bytes") << info.save_error;
  EXPECT_TRUE(engine_->DeleteDocument(book).ok());
  // One that goes on after a restart is bounded, too.
  engine_->PauseDocument(open());
  Append(open(), 0, kFirstPart, kFirstBytes);
  WaitForSavedText("acme/book", kFirstBytes);
  Restart();
  const auto again = Follow(open());
  const std::vector<int32_t> rest(kMost / 8, 3);
  const absl::Status refused = engine_->AppendToDocument(open(), rest, 4321);
  EXPECT_EQ(refused.GetPayload(kLimitPayload), "tenant.stored_bytes") << refused;
  GoOnToTheEnd("acme/book");
}

TEST_F(StoredUploads, ADamagedCacheIsComputedAgain) {
  const std::string expected = AnswerInOneGo("long_heads");
  BeginAndLeave("book", "long_heads");
  engine_.reset();
  for (const auto& segment : SegmentsOf("book")) DamageFile(segment);
  Restart();
  GoOnToTheEnd("book");
  EXPECT_EQ(Ask("book")->text(), expected);
  EXPECT_EQ(engine_->Stats().prefill_tokens, kDocumentTokens + 5);
}

TEST_F(StoredUploads, DamagedTokensFailTheUploadAndItBeginsAnew) {
  BeginAndLeave("book", "full");
  engine_.reset();
  DamageFile(DirectoryOf("book") + "/tokens");
  Restart();
  const auto sink = Follow(Info("book").handle);
  sink->WaitForEnd();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kDataLoss) << sink->status();
  EXPECT_EQ(Info("book").state, DocumentState::kFailed);
  ASSERT_TRUE(engine_->DeleteDocument(Info("book").handle).ok());
  UploadAndSave("book", "full");
}

TEST_F(StoredUploads, OnesThatAreDeletedOrFailLeaveNothing) {
  const auto wait_until_gone = [this](const std::string& id) {
    while (HasFilesOf(id)) std::this_thread::yield();
  };
  ASSERT_TRUE(engine_->DeleteDocument(BeginAndLeave("deleted", "full")).ok());
  wait_until_gone("deleted");
  const absl::Status bad = absl::InvalidArgumentError("no UTF-8");
  ASSERT_TRUE(engine_->FailDocument(BeginAndLeave("failed", "long_heads"), bad).ok());
  wait_until_gone("failed");
  BeginAndLeave("stored", "full");
  BeginAndLeave("read", "full");
  Restart();
  ASSERT_TRUE(engine_->DeleteDocument(Info("stored").handle).ok());
  wait_until_gone("stored");
  const DocumentHandle handle = Info("read").handle;
  const auto sink = Follow(handle);
  ASSERT_TRUE(engine_->DeleteDocument(handle).ok());
  sink->WaitForEnd();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kNotFound) << sink->status();
  wait_until_gone("read");
  while (engine_->Stats().kv_reserved_bytes > 0) std::this_thread::yield();
  Restart();
  EXPECT_EQ(engine_->ListDocuments("", 10).size(), 0u);
}

TEST_F(StoredUploads, AttributesThatChangeBetweenTwoSavesAreKeptToo) {
  const auto update = [this](const DocumentHandle& handle, const std::string& label) {
    std::promise<absl::Status> done;
    EXPECT_TRUE(engine_
                    ->UpdateDocument(
                        handle, [&](DocumentAttributes* one) { one->labels[label] = "x"; },
                        [&](const absl::Status& status) { done.set_value(status); })
                    .ok());
    EXPECT_TRUE(done.get_future().get().ok());
  };
  const DocumentHandle handle = BeginAndLeave("book", "full");
  update(handle, "between");
  Restart();
  EXPECT_TRUE(Info("book").attributes.labels.contains("between"));
  update(handle, "not loaded");
  GoOnToTheEnd("book");
  update(handle, "late");
  EXPECT_TRUE(WaitUntilSaved("book").saved);
  Restart();
  EXPECT_EQ(Info("book").attributes.labels.size(), 3u);
}

TEST_F(StoredUploads, AnUploadThatIsPausedIsNotPrefilledForTheSaver) {
  const DocumentHandle handle = BeginAndLeave("book", "full");
  Append(handle, kFirstPart, kDocumentTokens, 300 << 10);
  WaitForSavedText("book", 300 << 10);
  EXPECT_EQ(Info("book").prefilled_tokens, kFirstPart);
  Restart();
  const auto sink = Follow(Info("book").handle);
  WaitForPrefill("book", kDocumentTokens);
}

// Their clients may never come back.
TEST_F(StoredUploads, LeaveMemoryForOthersWhenTheirClientsAreGone) {
  options_.kv_disk_bytes = int64_t{10} << 20;
  options_.kv_dir += " that is small";
  Restart();
  const std::string expected = AnswerInOneGo("long_heads");
  const std::vector<std::string> ids = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (const std::string& id : ids) {
    BeginAndLeave(id, "long_heads");
    ASSERT_EQ(Info(id).state, DocumentState::kUploading);
  }
  // All of them would need more than there is.
  EXPECT_GT(std::ssize(ids) * kFirstPart * 4096, options_.kv_disk_bytes);
  EXPECT_EQ(Info("a").device_kv_bytes + Info("a").disk_kv_bytes, 0);
  EXPECT_EQ(Info("a").prefilled_tokens, kFirstPart);
  for (const std::string& id : ids) {
    GoOnToTheEnd(id);
    EXPECT_TRUE(WaitUntilSaved(id).saved);
    EXPECT_EQ(Ask(id)->text(), expected);
  }
  // What was prefilled before they left was read.
  const int64_t num_first = kDocumentTokens + 5 + kFirstPart * std::ssize(ids);
  const int64_t num_rest = (kDocumentTokens - kFirstPart + 5) * std::ssize(ids);
  EXPECT_EQ(engine_->Stats().prefill_tokens, num_first + num_rest);
  EXPECT_TRUE(engine_->DeleteDocument(BeginAndLeave("i", "full")).ok());
}

// Tokens that come for it, before somebody follows it, are not lost.
TEST_F(StoredUploads, OneThatHasLeftMemoryComesBackWithWhatIsAppended) {
  options_.kv_disk_bytes = int64_t{10} << 20;
  options_.kv_dir += " that is small";
  Restart();
  const std::string expected = AnswerInOneGo("full");
  const DocumentHandle handle = BeginAndLeave("book", "full");
  for (const char* id : {"a", "b", "c", "d"}) BeginAndLeave(id, "full");
  ASSERT_EQ(Info("book").device_kv_bytes + Info("book").disk_kv_bytes, 0);
  Append(handle, kFirstPart, kDocumentTokens, 4321);
  EXPECT_TRUE(engine_->FinishDocument(handle).ok());
  EXPECT_EQ(Ask("book")->text(), expected);
}

TEST_F(StoredUploads, OneThatHasLeftMemoryCanBeFinishedAsItIs) {
  options_.kv_disk_bytes = int64_t{10} << 20;
  options_.kv_dir += " that is small";
  Restart();
  ASSERT_TRUE(engine_->FinishDocument(BeginAndLeave("first", "full")).ok());
  const std::string expected = Ask("first")->text();
  const DocumentHandle handle = BeginAndLeave("book", "full");
  for (const char* id : {"a", "b", "c", "d"}) BeginAndLeave(id, "full");
  ASSERT_EQ(Info("book").device_kv_bytes + Info("book").disk_kv_bytes, 0);
  EXPECT_TRUE(engine_->FinishDocument(handle).ok());
  EXPECT_EQ(Ask("book")->text(), expected);
  EXPECT_TRUE(WaitUntilSaved("book").saved);
}

}  // namespace
}  // namespace folio::test
