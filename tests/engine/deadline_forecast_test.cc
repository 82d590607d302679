// Whether an answer is expected to end before its deadline.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "engine/sched/forecast.h"
#include "engine/sched/schedule_simulation.h"

namespace folio {
namespace {

constexpr double kFar = 1e6;

// Steps take 10 ms, 1 ms for each answer and 0.1 ms for each token of a prompt.
double Taken(double answers, double tokens) { return 0.010 + 0.001 * answers + 0.0001 * tokens; }

class DeadlineForecast : public testing::Test {
 protected:
  DeadlineForecast() {
    for (int n = 0; n < 2000; ++n) {
      const double answers = n % 7;
      const double tokens = n % 5 * 30;
      load_.rates.Note({.answers = answers,
                        .prompt_tokens = tokens,
                        .prompt_work = tokens,
                        .prompts = tokens > 0 ? 1.0 : 0.0},
                       Taken(answers, tokens));
    }
    load_.step_tokens = 100;
    load_.prefill_share_tokens = 50;
    load_.max_running_requests = 4;
    load_.free_bytes = 1000;
  }
  static LoadItem Item(double prompt_tokens, double answer_tokens, uint64_t tenant = 1) {
    return {.tenant = tenant,
            .rank = prompt_tokens,
            .prompt_tokens = prompt_tokens,
            .answer_tokens = answer_tokens};
  }
  void AddRunning(double prompt_tokens, double answer_tokens) {
    load_.items.push_back(Item(prompt_tokens, answer_tokens));
    load_.items.back().runs = true;
  }
  bool IsLate(const LoadItem& item, double seconds) {
    return IsTooLate(load_, item, seconds).has_value();
  }
  // Seconds until its answer has ended.
  double End(const LoadItem& item) {
    ScheduleSimulation simulation(load_, item, /*exact_steps=*/1000, /*future=*/0);
    return simulation.Run(item, kFar, ScheduleSimulation::Until::kEnd).end_seconds;
  }

  WorkLoad load_;
};

TEST_F(DeadlineForecast, TheWholeAnswerIsToBeThere) {
  const LoadItem item = Item(1000, 101);
  const double end = 10 * Taken(0, 100) + 100 * Taken(1, 0);
  EXPECT_NEAR(End(item), end, 0.02 * end);
  EXPECT_FALSE(IsLate(item, end));
  EXPECT_TRUE(IsLate(item, 0.85 * end));
  EXPECT_GE(*IsTooLate(load_, item, 0.5 * end), 0.5 * end);
  EXPECT_FALSE(IsLate(Item(1000, 1), 0.85 * end));
}

TEST_F(DeadlineForecast, ItIsReadBesideOthersAndWaitsForItsPlace) {
  for (int n = 0; n < 4; ++n) AddRunning(0, 300);
  const LoadItem item = Item(100, 11);
  const double end = 300 * Taken(4, 0) + Taken(0, 100) + 10 * Taken(1, 0);
  EXPECT_TRUE(IsLate(item, 0.85 * end));
  EXPECT_FALSE(IsLate(item, end));
}

// What is expected to come may not come.
TEST_F(DeadlineForecast, NothingThatIsStillToComeMakesItLate) {
  const LoadItem item = Item(1000, 101);
  const double end = 10 * Taken(0, 100) + 100 * Taken(1, 0);
  load_.flows.push_back({.item = Item(10, 1000), .per_second = 100, .count = 10, .together = 10});
  EXPECT_FALSE(IsLate(item, 1.05 * end));
}

TEST_F(DeadlineForecast, NothingIsLateAsLongAsNothingIsKnown) {
  load_.rates = {};
  EXPECT_FALSE(IsLate(Item(1e6, 1e6), 0.001));
}

TEST_F(DeadlineForecast, NoAnswerEndsLaterThanAfterEverythingInARow) {
  std::mt19937 random(7);
  const auto upto = [&random](int most) {
    return std::uniform_int_distribution<int>(0, most)(random);
  };
  for (int round = 0; round < 200; ++round) {
    load_.items.clear();
    load_.free_bytes = upto(1) == 0 ? 1 << 30 : 500;
    for (int n = upto(4); n > 0; --n) AddRunning(upto(300), 1 + upto(50));
    for (int n = upto(30); n > 0; --n) {
      load_.items.push_back(Item(1 + upto(400), 1 + upto(50), 1 + upto(1)));
      load_.items.back().needed_bytes = upto(500);
    }
    LoadItem item = Item(1 + upto(3000), 1 + upto(100), 1 + upto(1));
    item.needed_bytes = upto(500);
    EXPECT_GE(AtMost(load_, item), 0.99 * End(item)) << "round " << round;
  }
}

}  // namespace
}  // namespace folio
