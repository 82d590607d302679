// The order in which requests get memory and places, and what readers that are slow give up.
#include <algorithm>

#include "gmock/gmock.h"
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

using AdmissionOrder = EngineLoopTest;

TEST_F(AdmissionOrder, WhatFitsPassesWhatDoesNotAFewTimes) {
  auto running = Submit(1, Spec(60 * 16, 300));
  auto large = Submit(2, Spec(60 * 16, 2));
  std::vector<std::shared_ptr<Recorder>> small;
  for (RequestId id = 3; id < 15; ++id) small.push_back(Submit(id, Spec(16, 2)));
  const auto num_done = [&small] {
    return std::count_if(small.begin(), small.end(), [](const auto& r) { return r->ended(); });
  };
  for (int step = 0; step < 100; ++step) loop_.RunStep();
  ASSERT_FALSE(running->ended());
  EXPECT_EQ(num_done(), 8);
  EXPECT_FALSE(large->ended());
  RunUntilIdle();
  EXPECT_TRUE(large->completed().has_value());
  EXPECT_EQ(num_done(), 12);
}

TEST_F(AdmissionOrder, ARequestHeldBackGivesItsPlaceToOthers) {
  constexpr RequestId kMaxRunning = 4;  // of the fixture
  std::vector<std::shared_ptr<Recorder>> slow;
  for (RequestId id = 1; id <= kMaxRunning; ++id) slow.push_back(Submit(id, Spec(5, 50)));
  loop_.RunStep();
  auto other = Submit(100, Spec(5, 5));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_waiting(), 1);
  const int64_t used = store_->used_page_bytes();
  for (RequestId id = 1; id <= kMaxRunning; ++id) loop_.HoldBack(id);
  EXPECT_EQ(store_->used_page_bytes(), used);
  RunUntilIdle();
  EXPECT_TRUE(other->completed().has_value());
  for (const auto& recorder : slow) EXPECT_FALSE(recorder->ended());
  // Who comes back is the first to get a place.
  for (RequestId id = 101; id < 101 + 2 * kMaxRunning; ++id) Submit(id, Spec(5, 100));
  loop_.RunStep();
  loop_.LetGoOn(1);
  loop_.LetGoOn(99);  // unknown
  loop_.Cancel(101, absl::CancelledError("gone"));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 4);
  EXPECT_EQ(loop_.num_waiting(), 4);
  loop_.Cancel(2, absl::CancelledError("gone"));
  RunUntilIdle();
  EXPECT_EQ(slow[0]->completed()->usage.completion_tokens, 50);
  EXPECT_EQ(slow[0]->text(), std::string(50, 'f'));
  EXPECT_EQ(slow[1]->status().code(), absl::StatusCode::kCancelled);
  for (RequestId id = 3; id <= kMaxRunning; ++id) loop_.LetGoOn(id);
  RunUntilIdle();
  for (size_t n = 2; n < slow.size(); ++n) EXPECT_TRUE(slow[n]->completed().has_value());
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(AdmissionOrder, WhoWaitsIsToldItsPlaceAtMostOnceASecond) {
  now_ = std::chrono::steady_clock::now();
  for (RequestId id = 1; id <= 6; ++id) Submit(id, Spec(5, 100));
  auto last = Submit(7, Spec(5, 2));
  loop_.RunStep();
  EXPECT_THAT(last->positions(), testing::ElementsAre(2));
  loop_.Cancel(1, absl::CancelledError("gone"));
  for (int step = 0; step < 10; ++step) loop_.RunStep();
  loop_.Cancel(2, absl::CancelledError("gone"));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_waiting(), 1);
  EXPECT_THAT(last->positions(), testing::ElementsAre(2));
  *now_ += std::chrono::seconds(1);
  for (int step = 0; step < 10; ++step) loop_.RunStep();
  EXPECT_THAT(last->positions(), testing::ElementsAre(2, 0));
}

TEST_F(AdmissionOrder, WhoWaitsForADocumentIsToldOfEachSixteenthOrSecond) {
  now_ = std::chrono::steady_clock::now();
  const DocumentHandle document = Open("d");
  Append(document, 1280);  // a step reads 64
  Finish(document);
  auto question = Submit(1, Spec(3, 2, document));
  loop_.RunStep();
  EXPECT_EQ(question->num_prefills(), 1);
  for (int step = 0; step < 8; ++step) loop_.RunStep();
  EXPECT_EQ(question->num_prefills(), 1 + 4);
  for (int step = 0; step < 4; ++step) {
    *now_ += std::chrono::seconds(1);
    loop_.RunStep();
  }
  EXPECT_EQ(question->num_prefills(), 1 + 4 + 4);
  RunUntilIdle();
  EXPECT_TRUE(question->completed().has_value());
}

TEST_F(AdmissionOrder, WhatIsHeldBackMakesRoomForWhoWaits) {
  auto slow = Submit(1, Spec(60 * 16, 100));
  loop_.RunStep();
  loop_.HoldBack(1);
  auto small = Submit(2, Spec(16, 2));
  RunUntilIdle();
  EXPECT_TRUE(small->completed().has_value());
  EXPECT_FALSE(slow->ended());
  auto large = Submit(3, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_TRUE(large->completed().has_value());
  EXPECT_EQ(slow->status().code(), absl::StatusCode::kAborted);
}

TEST_F(AdmissionOrder, NobodyIsFailedInVain) {
  const DocumentHandle document = Upload("d", 50 * 16);
  auto slow = Submit(1, Spec(10 * 16, 100));
  loop_.RunStep();
  loop_.HoldBack(1);
  // Even without the one held back there is no room beside the document.
  auto large = Submit(2, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_FALSE(slow->ended());
  loop_.LetGoOn(1);
  RunUntilIdle();
  EXPECT_TRUE(slow->completed().has_value());
  EXPECT_EQ(large->status().code(), absl::StatusCode::kResourceExhausted);
}

constexpr int kPlaces = 4;  // of the fixture

class ClientsTakeTurns : public EngineLoopTest {
 protected:
  std::shared_ptr<Recorder> SubmitOf(const std::string& client, int max_new) {
    GenerateSpec spec = Spec(5, max_new);
    spec.tenant = NamedTenant(client);
    return Submit(++last_id_, std::move(spec));
  }
  std::vector<std::shared_ptr<Recorder>> SubmitMany(const std::string& client, int count,
                                                    int max_new) {
    std::vector<std::shared_ptr<Recorder>> many(count);
    for (auto& recorder : many) recorder = SubmitOf(client, max_new);
    return many;
  }
  RequestId last_id_ = 0;
};

TEST_F(ClientsTakeTurns, NobodyWaitsBehindTheQueueOfAnother) {
  const auto many = SubmitMany("many", 50, 20);
  loop_.RunStep();
  ASSERT_EQ(loop_.num_running(), kPlaces);
  const auto one = SubmitOf("one", 3);
  for (int step = 0; step < 3; ++step) loop_.RunStep();
  EXPECT_TRUE(one->completed().has_value());
  EXPECT_EQ(std::count_if(many.begin(), many.end(), [](const auto& r) { return r->ended(); }), 0);
  RunUntilIdle();
  for (const auto& recorder : many) EXPECT_EQ(recorder->text(), std::string(20, 'f'));
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(ClientsTakeTurns, PlacesAreSharedEqually) {
  SubmitMany("a", 20, 10);
  loop_.RunStep();
  const auto b = SubmitMany("b", 20, 10);
  const auto c = SubmitMany("c", 1, 10);
  for (int step = 0; step < 25; ++step) loop_.RunStep();
  EXPECT_TRUE(c[0]->ended());
  // The ten steps of the first four places; then two of four are theirs.
  const auto num_done = std::count_if(b.begin(), b.end(), [](const auto& r) { return r->ended(); });
  EXPECT_GE(num_done, 3);
  RunUntilIdle();
}

TEST_F(ClientsTakeTurns, OneWithoutOthersHasAllPlacesInItsOrder) {
  std::vector<std::shared_ptr<Recorder>> all = SubmitMany("one", 2 * kPlaces, 10);
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), kPlaces);
  for (int step = 0; step < 10; ++step) loop_.RunStep();
  for (int n = 0; n < kPlaces; ++n) EXPECT_TRUE(all[n]->ended()) << n;
  for (int n = kPlaces; n < 2 * kPlaces; ++n) EXPECT_FALSE(all[n]->ended()) << n;
}

TEST_F(ClientsTakeTurns, WhoHasOnePlaceKeepsIt) {
  std::vector<std::shared_ptr<Recorder>> first;
  for (const char* client : {"a", "b", "c", "d"}) first.push_back(SubmitOf(client, 10));
  loop_.RunStep();
  const auto later = SubmitOf("e", 10);
  for (int step = 0; step < 9; ++step) loop_.RunStep();
  for (const auto& recorder : first) EXPECT_TRUE(recorder->ended());
  EXPECT_FALSE(later->ended());
  RunUntilIdle();
  EXPECT_TRUE(later->completed().has_value());
}

TEST_F(ClientsTakeTurns, NobodyGivesWayToWhatHasNoMemory) {
  const auto many = SubmitMany("many", kPlaces, 20);
  loop_.RunStep();
  GenerateSpec large = Spec(99 * 16, 2);
  large.tenant = NamedTenant("large");
  const auto later = Submit(++last_id_, std::move(large));
  for (int step = 1; step < 20; ++step) loop_.RunStep();
  for (const auto& recorder : many) EXPECT_TRUE(recorder->ended());
  EXPECT_FALSE(later->ended());
  RunUntilIdle();
  EXPECT_TRUE(later->completed().has_value()) << later->status();
}

TEST_F(ClientsTakeTurns, WhoGaveWayGoesOnBeforeAllThatWait) {
  const auto a = SubmitMany("a", kPlaces + 1, 10);
  loop_.RunStep();
  const auto b = SubmitOf("b", 2);
  for (int step = 0; step < 2; ++step) loop_.RunStep();
  EXPECT_TRUE(b->completed().has_value());
  // Of the ten steps that it needs it has missed two.
  for (int step = 3; step < 11; ++step) loop_.RunStep();
  EXPECT_FALSE(a[kPlaces - 1]->ended());
  loop_.RunStep();
  EXPECT_EQ(a[kPlaces - 1]->text(), std::string(10, 'f'));
  EXPECT_FALSE(a[kPlaces]->ended());
  RunUntilIdle();
  EXPECT_TRUE(a[kPlaces]->completed().has_value());
}

}  // namespace
}  // namespace folio::test
