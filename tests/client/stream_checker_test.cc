#include "loadtest/stream_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/fake_server.h"

namespace folio::loadtest {
namespace {

using folio::testing::AnswerScript;
using folio::testing::NumberEvents;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kLimitMs = 500;

// The events of a good answer of two tokens.
std::vector<v1::GenerateEvent> GoodEvents() {
  return AnswerScript(v1::GenerateRequest(), "good day").events;
}

// What a checker says about a stream with an event every 0.1 s.
std::vector<std::string> Check(const std::vector<v1::GenerateEvent>& events, bool ok = true,
                               bool cancelled = false) {
  StreamChecker checker(0, kLimitMs);
  double now = 0;
  for (const v1::GenerateEvent& event : events) checker.OnEvent(event, now += 0.1);
  checker.OnEnd(ok, cancelled, now);
  return checker.violations();
}

TEST(StreamChecker, GoodStreamHasNoViolations) { EXPECT_THAT(Check(GoodEvents()), IsEmpty()); }

TEST(StreamChecker, GapInTheNumbersIsSeen) {
  auto events = GoodEvents();
  events[3].set_sequence(4);
  events[4].set_sequence(5);
  EXPECT_THAT(Check(events), ElementsAre("event number 4 where 3 was expected"));
}

TEST(StreamChecker, CompletedComesExactlyOnce) {
  auto without = GoodEvents();
  without.pop_back();
  EXPECT_THAT(Check(without), ElementsAre("the stream ended with OK but without Completed"));
  EXPECT_THAT(Check(without, /*ok=*/false), IsEmpty());
  auto twice = GoodEvents();
  twice.push_back(twice.back());
  NumberEvents(&twice);
  EXPECT_THAT(Check(twice), ElementsAre("an event after Completed"));
  EXPECT_THAT(Check(GoodEvents(), /*ok=*/false), ElementsAre("Completed was followed by an error"));
  EXPECT_THAT(Check(GoodEvents(), /*ok=*/false, /*cancelled=*/true), IsEmpty());
}

TEST(StreamChecker, ThePromptComesBeforeTheAnswerAndIsNotCounted) {
  auto events = GoodEvents();
  v1::GenerateEvent logprobs, echo;
  logprobs.mutable_prompt_logprobs()->set_first_position(1);
  echo.mutable_delta()->set_echo(true);
  echo.mutable_delta()->add_token_ids(5);
  auto good = events;
  good.insert(good.begin() + 1, {logprobs, echo, logprobs});
  NumberEvents(&good);
  EXPECT_THAT(Check(good), IsEmpty());
  events.insert(events.end() - 1, {logprobs, echo});
  NumberEvents(&events);
  EXPECT_THAT(Check(events), ElementsAre("PromptLogprobs after the first Delta",
                                         "an echo of the prompt in the answer"));
}

TEST(StreamChecker, OrderOfEventsIsChecked) {
  auto events = GoodEvents();
  std::swap(events[0], events[1]);
  NumberEvents(&events);
  EXPECT_THAT(Check(events), ElementsAre("Accepted is not exactly the first event",
                                         "Accepted is not exactly the first event"));
  events = GoodEvents();
  std::swap(events[1], events[2]);
  NumberEvents(&events);
  EXPECT_THAT(Check(events), ElementsAre("Queued or Prefill after the first Delta"));
}

TEST(StreamChecker, TokensMustAgreeWithCompleted) {
  auto events = GoodEvents();
  events[2].mutable_delta()->add_token_ids(1);
  EXPECT_THAT(Check(events), ElementsAre("the stream carried 3 tokens but Completed says 2"));
}

TEST(StreamChecker, SilenceAboveTheLimitIsSeen) {
  const auto events = GoodEvents();
  StreamChecker checker(0, kLimitMs);
  checker.OnEvent(events[0], 0.1);
  checker.OnEvent(events[1], 0.8);
  EXPECT_THAT(checker.violations(), ElementsAre("silent for 700 ms, the limit is 500 ms"));
  EXPECT_NEAR(checker.max_silence_ms(), 700, 1e-6);
  // Nobody hears a stream that was cancelled.
  checker.OnEnd(/*ok=*/false, /*cancelled=*/true, 5.0);
  EXPECT_EQ(checker.violations().size(), 1);
  StreamChecker silent_end(0, kLimitMs);
  silent_end.OnEnd(/*ok=*/false, /*cancelled=*/false, 0.6);
  EXPECT_EQ(silent_end.violations().size(), 1);
}

}  // namespace
}  // namespace folio::loadtest
