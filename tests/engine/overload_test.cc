// Ten times as many requests as can be served, in virtual time: what is computed is for answers
// that come in time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/engine/serving_mix.h"
#include "tests/engine/serving_simulator.h"

namespace folio::test {
namespace {

constexpr uint64_t kSeeds = 3;

class Overload : public testing::Test {
 protected:
  struct Result {
    double useful = 0;  // of the work that was done, for answers that came in time
    int completed = 0;
    int late = 0;  // of those that were not refused
  };
  Result Run(double deadline_seconds) {
    mix_.deadline_seconds = 0;
    const double rate = 10 * mix_.Capacity(options_);
    mix_.deadline_seconds = deadline_seconds;
    options_.forecasts = false;
    ServingSimulator simulator(options_);
    const auto outcomes = simulator.Run(mix_.Poisson(static_cast<int>(rate * seconds_), rate), 1e6);
    Result result;
    for (const SimulatedOutcome& outcome : outcomes) {
      if (!outcome.completed && !outcome.refused) ++result.late;
      if (!outcome.completed) continue;
      // The last step may have ended after the deadline.
      EXPECT_TRUE(deadline_seconds == 0 || outcome.end_seconds <= deadline_seconds + 0.1);
      ++result.completed;
      result.useful += simulator.WorkOf(outcome.request) / simulator.work();
    }
    return result;
  }

  double seconds_ = 12;
  ServingSimulator::Options options_;
  ServingMix mix_{.sizes = {{64, 0.6}, {512, 0.3}, {4096, 0.1}}};
};

TEST_F(Overload, WithoutDeadlinesAllThatIsBegunIsEnded) {
  const Result result = Run(0);
  EXPECT_GT(result.completed, 100);
  EXPECT_GE(result.useful, 0.9);
}

TEST_F(Overload, LittleWorkIsDoneForAnswersThatWouldComeTooLate) {
  for (mix_.seed = 0; mix_.seed < kSeeds; ++mix_.seed) {
    const Result best = Run(0);
    for (const double deadline : {5.0, 10.0}) {
      const Result result = Run(deadline);
      EXPECT_GE(result.useful, 0.9) << "deadline " << deadline << ", seed " << mix_.seed;
      EXPECT_GE(result.completed, 0.9 * best.completed)
          << "deadline " << deadline << ", seed " << mix_.seed;
    }
  }
}

// A model of some 100 M parameters on a processor: alone a prompt of 4,096 tokens takes 3 s of the
// five, and 64 answers beside each other take longer than two.
TEST_F(Overload, NorWhereStepsAreLong) {
  options_.machine = {.step_seconds = 0.005, .answer_seconds = 0.001, .work_seconds = 0.0008};
  seconds_ = 40;
  for (const double deadline : {2.0, 5.0}) {
    const Result result = Run(deadline);
    EXPECT_GE(result.useful, 0.8) << "deadline " << deadline;
    EXPECT_LE(result.late, 0.35 * (result.late + result.completed)) << "deadline " << deadline;
  }
}

// Where answers take most of the time that there is, more of them turn out late that are begun.
TEST_F(Overload, OfDeadlinesThatAreHardlyLongerThanAnAnswerMostOfTheWorkIsInTime) {
  EXPECT_GE(Run(2).useful, 0.8);
  mix_.sizes = {{200, 0.4}, {4000, 0.4}, {32000, 0.2}};
  EXPECT_GE(Run(5).useful, 0.8);
}

}  // namespace
}  // namespace folio::test
