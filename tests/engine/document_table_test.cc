// Documents on the engine thread: what a step publishes, what is evicted for whom, what is let go.
#include "engine/runtime/document_table.h"

#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

class DocumentTableTest : public EngineLoopTest {
 protected:
  explicit DocumentTableTest(int64_t frames = 100) : EngineLoopTest(frames) {}

  // Asks under a strategy; the tokens that were in the cache already.
  int64_t Ask(const DocumentHandle& document, const std::string& strategy) {
    GenerateSpec spec = Spec(3, 2, document);
    spec.attention = Attention(strategy);
    const auto recorder = Submit(++last_id_, std::move(spec));
    RunUntilIdle();
    EXPECT_TRUE(recorder->completed().has_value()) << recorder->status();
    return recorder->completed().value_or(CompletedEvent{}).usage.cached_tokens;
  }
  int64_t free_bytes() const { return store_->capacity_bytes() - store_->reserved_bytes(); }

  RequestId last_id_ = 0;
};

class ManyDocuments : public DocumentTableTest {
 protected:
  ManyDocuments() : DocumentTableTest(2000) {}
};

TEST_F(ManyDocuments, AStepTouchesThoseThatRanOnly) {
  DocumentHandle last;
  for (int i = 0; i < 1000; ++i) last = Upload(std::to_string(i), 3);
  const int64_t before = directory_.num_changes();
  auto question = Submit(1, Spec(10, 20, last));
  RunUntilIdle();
  EXPECT_TRUE(question->completed().has_value());
  EXPECT_EQ(directory_.num_changes(), before) << "the cache of no document has changed";

  const DocumentHandle book = Open("book");
  Append(book, 500);
  const int64_t opened = directory_.num_changes();
  const int steps = runner_.steps;
  RunUntilIdle();
  EXPECT_GT(runner_.steps, steps + 3);
  EXPECT_EQ(directory_.num_changes() - opened, runner_.steps - steps);
  EXPECT_EQ(directory_.Get(book)->prefilled_tokens, 500);
}

TEST_F(DocumentTableTest, TheLeastRecentlyUsedRenditionIsEvictedFirst) {
  const DocumentHandle document = Upload("d", 20 * 16);
  EXPECT_EQ(Ask(document, "lm_infinite"), 0);
  EXPECT_EQ(Ask(document, "streaming"), 0);
  EXPECT_EQ(Ask(document, "lm_infinite"), 320);
  const int64_t held = directory_.Get(document)->device_kv_bytes;
  const DocumentHandle other = Open("other");
  Append(other, static_cast<int>(free_bytes() / 4096) * 16 + 1);
  EXPECT_EQ(directory_.Get(other)->state, DocumentState::kUploading);
  EXPECT_LT(directory_.Get(document)->device_kv_bytes, held);
  Delete(other);
  EXPECT_EQ(Ask(document, "lm_infinite"), 320);
  EXPECT_EQ(Ask(document, "streaming"), 0);
}

TEST_F(DocumentTableTest, WhatIsReadOrWaitedForIsNotEvicted) {
  const DocumentHandle document = Upload("d", 20 * 16);
  Ask(document, "lm_infinite");
  GenerateSpec spec = Spec(3, 50, document);
  spec.attention = Attention("lm_infinite");
  const auto reader = Submit(++last_id_, std::move(spec));
  loop_.RunStep();
  const int64_t held = directory_.Get(document)->device_kv_bytes;
  const DocumentHandle other = Open("other");
  Append(other, static_cast<int>(free_bytes() / 4096) * 16 + 1);
  EXPECT_TRUE(directory_.Get(other)->short_of_room);
  EXPECT_EQ(directory_.Get(document)->device_kv_bytes, held);
  RunUntilIdle();
  EXPECT_TRUE(reader->completed().has_value()) << reader->status();
  EXPECT_FALSE(directory_.Get(other)->short_of_room);
}

TEST_F(DocumentTableTest, OpeningAStreamEvictsToo) {
  const DocumentHandle document = Upload("d", 10 * 16);
  Ask(document, "lm_infinite");
  const DocumentHandle filler = Open("filler");
  Append(filler, static_cast<int>(free_bytes() / 4096) * 16);
  ASSERT_LT(free_bytes(), 4096);
  const auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(77, Attention("long_heads"), stream);
  EXPECT_FALSE(stream->ended()) << stream->status();
}

TEST_F(DocumentTableTest, AFailedDocumentIsLetGoAndCallsForItDoNothing) {
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", sink);
  Append(document, 40);
  loop_.RunStep();
  const absl::Status why = absl::InvalidArgumentError("not UTF-8");
  EXPECT_TRUE(directory_.Fail(document, why).ok());
  loop_.documents().Drop(document, why);
  EXPECT_EQ(sink->status(), why);
  EXPECT_EQ(store_->used_page_bytes() + store_->reserved_bytes(), 0);
  EXPECT_EQ(loop_.documents().Find(document), nullptr);
  // Commands that were under way.
  loop_.documents().Append(document, {3, 4}, 0);
  loop_.documents().Finish(document);
  loop_.documents().Pause(document);
  const auto late = std::make_shared<Recorder>();
  loop_.documents().Follow(document, late);
  EXPECT_EQ(late->status(), why);
  EXPECT_FALSE(loop_.RunStep());
}

TEST_F(DocumentTableTest, TokensForADeletedDocumentDoNotReachItsSuccessor) {
  const DocumentHandle first = Open("d");
  Append(first, 30);
  Delete(first);
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle second = Open("d", sink);
  loop_.documents().Append(first, {3, 4, 5}, 0);
  Append(second, 20);
  loop_.documents().Finish(first);
  RunUntilIdle();
  EXPECT_FALSE(sink->ended());
  Finish(second);
  RunUntilIdle();
  EXPECT_TRUE(sink->completed().has_value());
  EXPECT_EQ(loop_.documents().Find(second)->tokens->size(), 20u);
}

TEST_F(DocumentTableTest, AFailedDeviceFailsDocumentsWithTheRest) {
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", sink);
  Append(document, 300);
  ASSERT_TRUE(loop_.RunStep());
  runner_.device = absl::InternalError("lost");
  EXPECT_FALSE(loop_.RunStep());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(directory_.Get(document)->state, DocumentState::kFailed);
}

}  // namespace
}  // namespace folio::test
