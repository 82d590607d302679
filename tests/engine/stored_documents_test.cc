// Documents of the real engine over restarts: what is saved answers as before, nothing damaged is
// used, what was deleted is gone.
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <thread>

#include "engine/runtime/attention_text.h"
#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/stored_documents_fixture.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;

// By --kv-dtype.
class StoredCaches : public StoredDocuments, public testing::WithParamInterface<const char*> {
 protected:
  StoredCaches() {
    options_.kv_dtype = GetParam();
    Restart();
  }
};
INSTANTIATE_TEST_SUITE_P(, StoredCaches, testing::Values("bf16", "int8", "int4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoredCaches, AnswerAsBeforeAfterARestartAndPrefillNothing) {
  const std::vector<std::string> strategies = {"full",      "long_heads",     "lm_infinite",
                                               "streaming", "sliding_window", "rerope"};
  std::map<std::string, std::string> before;
  for (const std::string& strategy : strategies) {
    UploadAndSave(strategy, strategy);
    const auto answer = Ask(strategy);
    ASSERT_TRUE(answer->completed().has_value()) << strategy << answer->status();
    before[strategy] = answer->text();
  }
  Restart();
  EXPECT_EQ(engine_->Stats().prefill_tokens, 0);
  for (const std::string& strategy : strategies) {
    SCOPED_TRACE(strategy);
    const DocumentInfo info = *engine_->GetDocument(strategy);
    EXPECT_EQ(info.state, DocumentState::kReady);
    EXPECT_EQ(info.attention, Resolved(strategy));
    EXPECT_TRUE(info.saved);
    EXPECT_EQ(info.known_tokens, kDocumentTokens);
    EXPECT_EQ(info.prefilled_tokens, kDocumentTokens);
    const auto text = std::static_pointer_cast<Text>(info.attachment);
    EXPECT_EQ(text->text.name, "name of " + strategy);
    EXPECT_EQ(text->text.upload_token, "secret");
    EXPECT_EQ(text->text.created_us, 1700);
    EXPECT_EQ(text->text.num_bytes, 4321);
    EXPECT_EQ(text->text.prompt_format, "chatml-01");
    EXPECT_EQ(text->text.lead_bytes, 77);
    const auto answer = Ask(strategy);
    ASSERT_TRUE(answer->completed().has_value()) << answer->status();
    EXPECT_EQ(answer->text(), before[strategy]);
    EXPECT_EQ(answer->completed()->usage.cached_tokens, kDocumentTokens);
    EXPECT_EQ(text->tokens, TokensOf(3));
  }
  EXPECT_EQ(engine_->Stats().prefill_tokens, 5 * std::ssize(strategies));
}

TEST_F(StoredDocuments, AnotherAttentionIsComputedFromTheStoredTokens) {
  UploadAndSave("book", "full");
  const auto before = Ask("book", "long_heads");
  Restart();
  const auto answer = Ask("book", "long_heads");
  ASSERT_TRUE(answer->completed().has_value()) << answer->status();
  EXPECT_EQ(answer->text(), before->text());
  EXPECT_EQ(answer->completed()->usage.cached_tokens, 0);
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
}

// Summaries are read before the first token, pages when they are chosen.
TEST_F(StoredDocuments, ADamagedCacheIsComputedAgainAndSavedAgain) {
  UploadAndSave("book", "long_heads");
  const std::string before = Ask("book")->text();
  engine_.reset();
  const auto segments = SegmentsOf("book");
  ASSERT_GT(segments.size(), 2u);
  for (const auto& segment : segments) DamageFile(segment);
  Restart();
  const auto answer = Ask("book");
  ASSERT_TRUE(answer->completed().has_value()) << answer->status();
  EXPECT_EQ(answer->text(), before);
  EXPECT_EQ(answer->completed()->usage.cached_tokens, 0);
  while (engine_->Stats().document_saves == 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().documents_quarantined, 1);
  Restart();
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
  EXPECT_EQ(Ask("book")->text(), before);
}

TEST_F(StoredDocuments, APageThatIsFoundDamagedBeforeTheFirstTokenIsComputedAgain) {
  for (const char* strategy : {"full", "long_heads"}) {
    UploadAndSave(strategy, strategy);
    const std::string before = Ask(strategy)->text();
    engine_.reset();
    DamageFile(SegmentsOf(strategy).at(0));
    Restart();
    // Two at once: both begin again, with one prefill.
    const auto first = Submit(strategy);
    const auto second = Submit(strategy);
    for (const auto& answer : {first, second}) {
      answer->WaitForEnd();
      ASSERT_TRUE(answer->completed().has_value()) << answer->status();
      EXPECT_EQ(answer->text(), before);
      EXPECT_EQ(answer->completed()->usage.cached_tokens, 0);
      EXPECT_EQ(answer->completed()->usage.completion_tokens, 6);
    }
    EXPECT_EQ(engine_->Stats().cached_tokens, 0);
    while (engine_->Stats().document_saves == 0) std::this_thread::yield();
    EXPECT_EQ(engine_->Stats().documents_quarantined, 1);
    Restart();
    EXPECT_EQ(CachedTokens(strategy), kDocumentTokens);
  }
}

// Its first tokens are with the client already.
TEST_F(StoredDocuments, APageThatIsFoundDamagedLaterEndsTheAnswerAndTheNextOneComputesIt) {
  UploadAndSave("book", "full");
  const std::string before = Ask("book")->text();
  engine_.reset();
  Restart();
  const auto answer = Submit("book", 2000);
  answer->WaitForTokens(1);
  DamageFile(SegmentsOf("book").at(0));
  answer->WaitForEnd();
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
  const auto next = Ask("book");
  ASSERT_TRUE(next->completed().has_value()) << next->status();
  EXPECT_EQ(next->text(), before);
  EXPECT_EQ(next->completed()->usage.cached_tokens, 0);
}

TEST_F(StoredDocuments, DamagedTokensFailTheDocumentAndTheIdIsFreeAfterADeletion) {
  UploadAndSave("book", "full");
  engine_.reset();
  DamageFile(DirectoryOf("book") + "/tokens");
  Restart();
  EXPECT_EQ(Ask("book")->status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(engine_->GetDocument("book")->state, DocumentState::kFailed);
  EXPECT_FALSE(HasFilesOf("book"));
  ASSERT_TRUE(engine_->DeleteDocument(engine_->GetDocument("book")->handle).ok());
  UploadAndSave("book", "full");
  EXPECT_TRUE(Ask("book")->completed().has_value());
}

TEST_F(StoredDocuments, ADeletedDocumentIsGoneForGood) {
  const DocumentHandle first = UploadAndSave("first", "full");
  UploadAndSave("second", "full");
  ASSERT_TRUE(engine_->DeleteDocument(first).ok());
  Restart();
  EXPECT_FALSE(HasFilesOf("first"));
  EXPECT_FALSE(engine_->GetDocument("first").has_value());
  ASSERT_TRUE(engine_->GetDocument("second").has_value());
  // One that was not loaded.
  ASSERT_TRUE(engine_->DeleteDocument(engine_->GetDocument("second")->handle).ok());
  UploadAndSave("second", "long_heads", 100);
  Restart();
  EXPECT_EQ(engine_->GetDocument("second")->attention, Resolved("long_heads"));
  EXPECT_EQ(CachedTokens("second"), kDocumentTokens);
}

TEST_F(StoredDocuments, ADocumentOnDiskMakesRoomForOthersAndComesBack) {
  // Room for the cache of two of them.
  options_.kv_disk_bytes = int64_t{13} << 20;
  Restart();
  std::map<std::string, std::string> before;
  for (const std::string id : {"a", "b", "c", "d"}) {
    UploadAndSave(id, "full", id[0]);
    before[id] = Ask(id)->text();
  }
  for (const std::string id : {"a", "b", "c", "d", "a"}) {
    const auto answer = Ask(id);
    ASSERT_TRUE(answer->completed().has_value()) << answer->status();
    EXPECT_EQ(answer->text(), before[id]);
    EXPECT_EQ(answer->completed()->usage.cached_tokens, kDocumentTokens);
  }
  EXPECT_GT(engine_->Stats().document_loads, 0);
}

TEST_F(StoredDocuments, WhatDoesNotFitIsNotSavedAndSaysWhy) {
  options_.store_bytes = int64_t{8} << 20;
  Restart();
  UploadAndSave("a", "full");
  // Makes room by dropping the cache of the other one, which keeps its tokens.
  UploadAndSave("b", "full", 50);
  Restart();
  EXPECT_EQ(engine_->GetDocument("a")->prefilled_tokens, 0);
  EXPECT_EQ(engine_->GetDocument("b")->prefilled_tokens, kDocumentTokens);
  EXPECT_EQ(CachedTokens("a"), 0);

  options_.kv_dir = dir_.path() + "/small";
  options_.store_bytes = int64_t{1} << 20;
  Restart();
  Upload("c", "full");
  const DocumentInfo info = WaitUntilSaved("c");
  EXPECT_FALSE(info.saved);
  EXPECT_EQ(info.save_error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Ask("c")->completed().has_value());
}

TEST_F(StoredDocuments, AQuestionThatIsCancelledWhileItsDocumentIsReadLeavesNothing) {
  UploadAndSave("book", "long_heads");
  Restart();
  for (int n = 0; n < 20; ++n) {
    GenerateSpec spec;
    spec.tokens = {5};
    spec.document = engine_->GetDocument("book")->handle;
    spec.attention = Resolved("long_heads");
    auto sink = std::make_shared<Recorder>();
    const auto id = engine_->Submit(spec, sink);
    ASSERT_TRUE(id.ok());
    engine_->Cancel(*id, absl::CancelledError("enough"));
    sink->WaitForEnd();
  }
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
  ASSERT_TRUE(engine_->DeleteDocument(engine_->GetDocument("book")->handle).ok());
  while (engine_->Stats().kv_reserved_bytes > 0) std::this_thread::yield();
}

TEST_F(StoredDocuments, TokensOfAnotherTokenizerMeanNothing) {
  UploadAndSave("book", "full");
  const std::string model = dir_.path() + "/model";
  std::filesystem::copy(options_.model_dir, model);
  std::ofstream(model + "/tokenizer_config.json") << "{}";
  options_.model_dir = model;
  Restart();
  const DocumentInfo info = *engine_->GetDocument("book");
  EXPECT_EQ(info.state, DocumentState::kFailed);
  EXPECT_THAT(std::string(info.error.message()), HasSubstr("another tokenizer"));
}

TEST_F(StoredDocuments, OfAnotherModelTheTokensStayAndTheCacheIsComputedAgain) {
  UploadAndSave("book", "streaming");
  options_.page_tokens = 32;
  Restart();
  EXPECT_EQ(engine_->GetDocument("book")->prefilled_tokens, 0);
  EXPECT_EQ(engine_->GetDocument("book")->attention, Resolved("streaming"));
  EXPECT_EQ(CachedTokens("book"), 0);
  EXPECT_EQ(CachedTokens("book"), kDocumentTokens);
}

TEST_F(StoredDocuments, AttentionIsWrittenSoThatItIsReadAsItWas) {
  for (const char* strategy : {"full", "long_heads", "lm_infinite", "streaming", "rerope"}) {
    for (const char* position : {"", "yarn", "dynamic_ntk", "ntk_by_parts", "linear"}) {
      const auto spec = engine_->ResolveAttention({{strategy, {}}, {position, {}}}, {});
      if (!spec.ok()) continue;
      const auto parsed = ParseAttentionText(AttentionText(*spec));
      ASSERT_TRUE(parsed.has_value()) << AttentionText(*spec);
      const auto again = engine_->ResolveAttention(*parsed, {});
      ASSERT_TRUE(again.ok()) << AttentionText(*spec) << again.status();
      EXPECT_EQ(*again, *spec) << AttentionText(*spec);
    }
  }
  for (const char* text : {"", "full", "full()", "full() plain", "full() plain(x)", "a(b=1 c()"}) {
    EXPECT_FALSE(ParseAttentionText(text).has_value()) << text;
  }
}

TEST_F(StoredDocuments, AttributesOutliveTheProcess) {
  const auto update = [this](const DocumentHandle& handle, auto change) {
    std::promise<absl::Status> done;
    EXPECT_TRUE(engine_
                    ->UpdateDocument(handle, change,
                                     [&](const absl::Status& status) { done.set_value(status); })
                    .ok());
    return done.get_future().get();
  };
  const auto attributes = [this] { return engine_->GetDocument("book")->attributes; };
  const DocumentHandle book = Upload("book", "full");
  // Before it is saved, while it is, or afterwards.
  EXPECT_TRUE(update(book, [](DocumentAttributes* one) { one->labels["when"] = "early"; }).ok());
  WaitUntilSaved("book");
  EXPECT_TRUE(update(book, [](DocumentAttributes* one) { one->labels["team"] = "law"; }).ok());
  const DocumentAttributes before = attributes();
  Restart();
  EXPECT_EQ(attributes(), before);
  EXPECT_EQ(before.labels.size(), 2u);
  // Questions of a document with a TTL move its end on disk, too.
  EXPECT_TRUE(update(book, [](DocumentAttributes* one) { one->ttl_us = 1'000'000'000; }).ok());
  const int64_t used = attributes().last_used_us;
  Restart();
  EXPECT_EQ(attributes().last_used_us, used);
  EXPECT_TRUE(engine_->ExpiredDocuments().empty());
  EXPECT_TRUE(update(book, [](DocumentAttributes* one) { one->ttl_us = 1; }).ok());
  Restart();
  EXPECT_EQ(engine_->ExpiredDocuments(), std::vector{book});
}

// Each takes about 5 MB, of 16.
TEST_F(StoredDocuments, PinnedOnesLeaveHalfOfTheDiskToOthers) {
  options_.store_bytes = int64_t{16} << 20;
  Restart();
  const auto pin = [this](const DocumentHandle& handle, bool pinned) {
    return engine_->UpdateDocument(
        handle, [&](DocumentAttributes* one) { one->pinned = pinned; },
        [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  };
  const DocumentHandle first = UploadAndSave("first", "full");
  ASSERT_TRUE(pin(first, true).ok());
  const DocumentHandle second = UploadAndSave("second", "full", 50);
  EXPECT_EQ(pin(second, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(engine_->GetDocument("second")->attributes.pinned);
  // One that is pinned before it has a size is not saved beyond that.
  const DocumentHandle third = Open("third", "full");
  ASSERT_TRUE(pin(third, true).ok());
  Upload("third", "full", 100);
  EXPECT_EQ(WaitUntilSaved("third").save_error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Ask("third")->completed().has_value());
  ASSERT_TRUE(pin(third, false).ok());
  ASSERT_TRUE(engine_->SaveDocument(third).ok());
  EXPECT_TRUE(WaitUntilSaved("third").saved) << WaitUntilSaved("third").save_error;
  Restart();
  EXPECT_EQ(pin(second, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CachedTokens("first"), kDocumentTokens);
}

}  // namespace
}  // namespace folio::test
