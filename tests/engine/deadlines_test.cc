// Requests that cannot be answered in time, and what is done for them: nothing.
#include <chrono>
#include <thread>

#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

using std::chrono::seconds;

class Deadlines : public EngineLoopTest {
 protected:
  // Steps of a prompt alone, as slow as they have to be: a token takes about 0.2 ms.
  void Measure() {
    runner_.seconds_per_token = 0.0002;
    for (int n = 0; n < 20; ++n) {
      Submit(++last_id_, Spec(64 + n, 1));
      RunUntilIdle();
    }
  }
  std::shared_ptr<Recorder> SubmitWith(SteadyTime::duration left, int prompt, int max_new = 2) {
    GenerateSpec spec = Spec(prompt, max_new);
    spec.stop.ignore_eos = true;  // all of them
    spec.deadline = std::chrono::steady_clock::now() + left;
    return Submit(++last_id_, std::move(spec));
  }
  RequestId last_id_ = 0;
};

TEST_F(Deadlines, NoWorkIsDoneForAPromptThatCannotBeReadInTime) {
  Measure();
  const int64_t tokens = runner_.tokens;
  // About 0.28 s.
  const auto late = SubmitWith(std::chrono::milliseconds(60), 1400);
  EXPECT_FALSE(loop_.RunStep());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(late->status().message().find("takes about"), std::string::npos) << late->status();
  EXPECT_EQ(runner_.tokens, tokens);
}

TEST_F(Deadlines, WhatMayJustBeReadInTimeIsTried) {
  Measure();
  const auto close = SubmitWith(std::chrono::milliseconds(250), 1400);
  EXPECT_TRUE(loop_.RunStep());
  EXPECT_FALSE(close->ended());
}

TEST_F(Deadlines, NothingIsEndedEarlyWithoutMeasurements) {
  const auto request = SubmitWith(std::chrono::milliseconds(60), 1400);
  EXPECT_TRUE(loop_.RunStep());
  EXPECT_FALSE(request->ended());
}

// One that would end too late waits for those that would not; alone it runs.
TEST_F(Deadlines, WhoWouldBeLateGivesPrecedence) {
  Measure();
  for (int n = 0; n < 4; ++n) Submit(++last_id_, Spec(5, 3 + 3 * n));
  loop_.RunStep();
  runner_.seconds_per_token = 0;
  // Its answer of 1000 tokens takes seconds.
  const auto late = SubmitWith(seconds(1), 20, 1000);
  const auto in_time = SubmitWith(seconds(1000), 20, 30);
  while (in_time->tokens() == 0) ASSERT_TRUE(loop_.RunStep());
  EXPECT_EQ(late->tokens(), 0);
  while (late->tokens() == 0 && !late->ended()) ASSERT_TRUE(loop_.RunStep());
  EXPECT_GT(late->tokens(), 0) << late->status();
}

}  // namespace
}  // namespace folio::test
