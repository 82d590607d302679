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

constexpr double kSeconds = 8;
constexpr uint64_t kSeeds = 3;

class Overload : public testing::Test {
 protected:
  struct Result {
    double useful = 0;  // of the work that was done, for answers that came in time
    int completed = 0;
  };
  Result Run(double deadline_seconds) {
    mix_.deadline_seconds = deadline_seconds;
    const double rate = 10 * mix_.Capacity(options_);
    options_.forecasts = false;
    ServingSimulator simulator(options_);
    const auto outcomes = simulator.Run(mix_.Poisson(static_cast<int>(rate * kSeconds), rate), 1e6);
    Result result;
    for (const SimulatedOutcome& outcome : outcomes) {
      if (!outcome.completed) continue;
      // The last step may have ended after the deadline.
      EXPECT_TRUE(deadline_seconds == 0 || outcome.end_seconds <= deadline_seconds + 0.1);
      ++result.completed;
      result.useful += simulator.WorkOf(outcome.request) / simulator.work();
    }
    return result;
  }

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
      EXPECT_GE(result.useful, 0.85) << "deadline " << deadline << ", seed " << mix_.seed;
      EXPECT_GE(result.completed, 0.9 * best.completed)
          << "deadline " << deadline << ", seed " << mix_.seed;
    }
  }
}

// Where answers take most of the time that there is, more of them turn out late that are begun.
TEST_F(Overload, OfDeadlinesThatAreHardlyLongerThanAnAnswerMostOfTheWorkIsInTime) {
  EXPECT_GE(Run(2).useful, 0.7);
  mix_.sizes = {{200, 0.4}, {4000, 0.4}, {32000, 0.2}};
  EXPECT_GE(Run(5).useful, 0.7);
}

}  // namespace
}  // namespace folio::test
