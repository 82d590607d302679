// What becomes of requests, streams and documents when the host has no memory for a step.
// tests/allocation does the same with the real engine, allocation by allocation.
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

class WithoutHostMemory : public EngineLoopTest {
 protected:
  void ExpectNothingHeld() {
    EXPECT_EQ(store_->reserved_bytes(), 0);
    EXPECT_EQ(store_->used_page_bytes(), 0);
    EXPECT_EQ(loop_.num_running() + loop_.num_waiting(), 0);
  }
};

constexpr absl::StatusCode kNoMemory = absl::StatusCode::kResourceExhausted;

TEST_F(WithoutHostMemory, TheRequestsOfAStepThatDoesNotStartFail) {
  auto running = Submit(1, Spec(5, 20));
  loop_.RunStep();
  auto next = Submit(2, Spec(5, 20));
  runner_.start_throws = true;
  loop_.RunStep();
  EXPECT_EQ(running->status().code(), kNoMemory);
  EXPECT_EQ(next->status().code(), kNoMemory);
  EXPECT_NE(next->status().message().find("host memory"), std::string::npos) << next->status();
  ExpectNothingHeld();
  auto later = Submit(3, Spec(5, 20));
  RunUntilIdle();
  EXPECT_TRUE(later->completed().has_value());
}

TEST_F(WithoutHostMemory, SoDoThoseOfAStepWithoutResults) {
  auto running = Submit(1, Spec(5, 20));
  const auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(7, Attention("full"), stream);
  loop_.scorings().Append(7, {3, 4, 5, 6});
  const auto upload = std::make_shared<Recorder>();
  const DocumentHandle document = Open("d", upload);
  Append(document, 10);
  runner_.finish_throws = true;
  loop_.RunStep();
  EXPECT_EQ(running->status().code(), kNoMemory);
  EXPECT_EQ(upload->status().code(), kNoMemory);
  EXPECT_EQ(directory_.Get(document)->state, DocumentState::kFailed);
  EXPECT_EQ(stream->status().code(), kNoMemory);
  ExpectNothingHeld();
}

TEST_F(WithoutHostMemory, AStepThatRanAheadGoesOnWithoutTheOneThatFailed) {
  runner_.ahead = true;
  auto answer = Submit(1, Spec(5, 20));
  for (int step = 0; step < 4; ++step) loop_.RunStep();
  runner_.start_throws = true;
  RunUntilIdle();
  EXPECT_EQ(answer->status().code(), kNoMemory);
  EXPECT_LT(answer->tokens(), 20);
  ExpectNothingHeld();
  auto later = Submit(2, Spec(5, 20));
  RunUntilIdle();
  EXPECT_EQ(later->tokens(), 20);
}

// Those that wait for a rendition fail with it; the document itself stays.
TEST_F(WithoutHostMemory, ARenditionThatFailsTakesItsUsersAlong) {
  const DocumentHandle document = Upload("d", 100);
  const int64_t held = store_->reserved_bytes();
  GenerateSpec spec = Spec(3, 2, document);
  spec.attention = Attention("lm_infinite");
  auto question = Submit(1, std::move(spec));
  runner_.start_throws = true;
  RunUntilIdle();
  EXPECT_EQ(question->status().code(), kNoMemory);
  EXPECT_EQ(store_->reserved_bytes(), held);
  auto other = Submit(2, Spec(3, 2, document));
  RunUntilIdle();
  EXPECT_TRUE(other->completed().has_value());
}

}  // namespace
}  // namespace folio::test
