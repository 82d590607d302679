// Uploads whose next tokens find no room in the cache wait for what runs to end.
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

// Pages of 16 tokens: 100 of them.
class UploadRoom : public EngineLoopTest {
 protected:
  bool IsShort(const DocumentHandle& handle) { return directory_.Get(handle)->short_of_room; }
  DocumentState StateOf(const DocumentHandle& handle) { return directory_.Get(handle)->state; }
};

TEST_F(UploadRoom, AnUploadWaitsForARequestThatRuns) {
  auto request = Submit(1, Spec(60 * 16, 30));
  loop_.RunStep();
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", sink);
  Append(document, 20 * 16);
  EXPECT_FALSE(IsShort(document));
  Append(document, 50 * 16);
  EXPECT_TRUE(IsShort(document));
  Append(document, 5);  // what was read already
  Finish(document);
  while (!request->ended()) {
    EXPECT_TRUE(IsShort(document));
    EXPECT_FALSE(sink->ended()) << sink->status();
    ASSERT_TRUE(loop_.RunStep());
  }
  EXPECT_TRUE(request->completed().has_value());
  RunUntilIdle();
  EXPECT_FALSE(IsShort(document));
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_EQ(StateOf(document), DocumentState::kReady);
  EXPECT_EQ(directory_.Get(document)->prefilled_tokens, 70 * 16 + 5);
  auto question = Submit(2, Spec(3, 2, document));
  RunUntilIdle();
  EXPECT_EQ(question->completed()->usage.cached_tokens, 70 * 16 + 5);
}

// What was prefilled of it is not the document.
TEST_F(UploadRoom, AQuestionWaitsForAllOfTheDocument) {
  auto request = Submit(1, Spec(60 * 16, 200));
  const DocumentHandle document = Open("d");
  Append(document, 10 * 16);
  for (int step = 0; step < 40; ++step) loop_.RunStep();
  Append(document, 40 * 16);
  Finish(document);
  ASSERT_TRUE(IsShort(document));
  auto question = Submit(2, Spec(3, 2, document));
  while (!request->ended()) {
    ASSERT_TRUE(loop_.RunStep());
    ASSERT_TRUE(request->ended() || question->tokens() == 0);
  }
  RunUntilIdle();
  EXPECT_EQ(question->completed()->usage.prompt_tokens, 50 * 16 + 3);
}

TEST_F(UploadRoom, WhatNothingWillMakeRoomForFailsAtOnce) {
  const DocumentHandle kept = Upload("kept", 60 * 16);
  auto request = Submit(1, Spec(10 * 16, 100));
  loop_.RunStep();
  const auto sink = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", sink);
  Append(document, 50 * 16);
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(StateOf(document), DocumentState::kFailed);
  RunUntilIdle();
  EXPECT_TRUE(request->completed().has_value());
  EXPECT_EQ(StateOf(kept), DocumentState::kReady);
}

// The room that the first takes is not there for the second, whatever ends.
TEST_F(UploadRoom, OfTwoThatWaitTheFirstGetsTheRoom) {
  auto request = Submit(1, Spec(70 * 16, 20));
  loop_.RunStep();
  const auto first_sink = std::make_shared<Recorder>();
  const auto second_sink = std::make_shared<Recorder>();
  const DocumentHandle first = Open("first", first_sink);
  const DocumentHandle second = Open("second", second_sink);
  Append(first, 60 * 16);
  Append(second, 60 * 16);
  EXPECT_TRUE(IsShort(first) && IsShort(second));
  Finish(first);
  Finish(second);
  RunUntilIdle();
  EXPECT_TRUE(first_sink->completed().has_value()) << first_sink->status();
  EXPECT_EQ(second_sink->status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(UploadRoom, OneThatWaitsCanBeDeletedOrLeft) {
  auto request = Submit(1, Spec(70 * 16, 20));
  loop_.RunStep();
  const DocumentHandle deleted = Open("deleted", std::make_shared<Recorder>());
  const DocumentHandle left = Open("left", std::make_shared<Recorder>());
  Append(deleted, 60 * 16);
  Append(left, 60 * 16);
  Delete(deleted);
  loop_.documents().Pause(left);
  RunUntilIdle();
  EXPECT_TRUE(request->completed().has_value());
  EXPECT_EQ(store_->reserved_bytes(), 0) << "nobody follows the upload";
  loop_.documents().Follow(left, std::make_shared<Recorder>());
  RunUntilIdle();
  EXPECT_EQ(directory_.Get(left)->prefilled_tokens, 60 * 16);
}

TEST_F(UploadRoom, RequestsPassOneThatWaitsAFewTimes) {
  auto request = Submit(1, Spec(60 * 16, 250));
  loop_.RunStep();
  const DocumentHandle document = Open("d", std::make_shared<Recorder>());
  Append(document, 60 * 16);
  ASSERT_TRUE(IsShort(document));
  std::vector<std::shared_ptr<Recorder>> small;
  for (RequestId id = 2; id < 22; ++id) small.push_back(Submit(id, Spec(16, 2)));
  for (int step = 0; step < 100; ++step) loop_.RunStep();
  const auto done =
      std::count_if(small.begin(), small.end(), [](const auto& r) { return r->ended(); });
  EXPECT_EQ(done, 8);
  RunUntilIdle();
  EXPECT_EQ(directory_.Get(document)->prefilled_tokens, 60 * 16);
  for (const auto& recorder : small) EXPECT_TRUE(recorder->completed().has_value());
}

}  // namespace
}  // namespace folio::test
