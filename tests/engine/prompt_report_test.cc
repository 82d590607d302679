// What a request is told about its prompt, with scores that a test makes up.
#include "engine/runtime/prompt_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/letter_tokenizer.h"

namespace folio::test {
namespace {

using testing::ElementsAre;

class Events final : public EventSink {
 public:
  void OnEvent(Event event) override { prompts.push_back(std::get<PromptEvent>(event)); }
  std::vector<PromptEvent> prompts;
};

class PromptReportTest : public testing::Test {
 protected:
  // Tokens a, b, c, ... of a prompt, behind `document_tokens` of a document.
  explicit PromptReportTest(int num_tokens = 10) { SetPrompt(num_tokens, 0); }
  void SetPrompt(int num_tokens, int64_t document_tokens) {
    sequence_.tokens = std::make_shared<std::vector<int32_t>>();
    for (int i = 0; i < num_tokens; ++i) sequence_.tokens->push_back(i % 26);
    sequence_.tokens_begin = sequence_.num_in_kv = document_tokens;
    sequence_.num_prompt = document_tokens + num_tokens;
  }
  // A step of so many tokens; each has minus its position as log-probability, and a rival.
  void Step(PromptReport* report, int64_t num_tokens, bool rated) {
    ModelRunner::Scores scores;
    scores.first_position = sequence_.num_in_kv + 1;
    sequence_.num_in_kv += num_tokens;
    const int64_t end = std::min(sequence_.num_in_kv + 1, sequence_.num_prompt);
    for (int64_t i = scores.first_position; i < end; ++i) {
      scores.logprobs.push_back(static_cast<float>(-i));
      scores.top_logprobs.push_back({{7, -0.5f}});
    }
    if (rated && !scores.logprobs.empty()) report->Take(std::move(scores));
    report->Send(sequence_, &events_);
  }
  std::vector<int64_t> FirstPositions() const {
    std::vector<int64_t> positions;
    for (const PromptEvent& event : events_.prompts) positions.push_back(event.first_position);
    return positions;
  }
  // Of all events together.
  std::string Text() const {
    std::string text;
    for (const PromptEvent& event : events_.prompts) text += event.text;
    return text;
  }
  std::vector<float> Logprobs() const {
    std::vector<float> logprobs;
    for (const PromptEvent& event : events_.prompts) {
      for (const TokenLogprob& one : event.logprobs) logprobs.push_back(one.logprob);
    }
    return logprobs;
  }

  LetterTokenizer tokenizer_{26};
  Sequence sequence_;
  Events events_;
};

GenerateSpec Wanting(bool logprobs, bool echo) {
  GenerateSpec spec;
  spec.prompt_logprobs = logprobs;
  spec.echo = echo;
  return spec;
}

TEST_F(PromptReportTest, LogprobsAreOfAllTokensButTheFirst) {
  PromptReport report(Wanting(true, false), tokenizer_);
  for (const int64_t count : {4, 5, 1}) Step(&report, count, true);
  EXPECT_THAT(FirstPositions(), ElementsAre(1, 5));
  EXPECT_THAT(Logprobs(), ElementsAre(-1, -2, -3, -4, -5, -6, -7, -8, -9));
  EXPECT_TRUE(events_.prompts[0].tokens.empty());
  EXPECT_EQ(events_.prompts[1].logprobs[0].token, 5);
  EXPECT_EQ(events_.prompts[1].top_logprobs.at(4).at(0).token, 7);
  EXPECT_EQ(Text(), "");
}

TEST_F(PromptReportTest, AnEchoComesAsTheTokensAreRead) {
  PromptReport report(Wanting(false, true), tokenizer_);
  for (const int64_t count : {4, 5, 1}) Step(&report, count, false);
  EXPECT_THAT(FirstPositions(), ElementsAre(0, 4, 9));
  EXPECT_EQ(Text(), "abcdefghij");
  EXPECT_THAT(events_.prompts[1].tokens, ElementsAre(4, 5, 6, 7, 8));
  EXPECT_TRUE(Logprobs().empty());
}

TEST_F(PromptReportTest, TheFirstTokenOfARatedEchoStandsAlone) {
  PromptReport report(Wanting(true, true), tokenizer_);
  for (const int64_t count : {9, 1}) Step(&report, count, true);
  EXPECT_THAT(FirstPositions(), ElementsAre(0, 1));
  EXPECT_THAT(events_.prompts[0].tokens, ElementsAre(0));
  EXPECT_TRUE(events_.prompts[0].logprobs.empty());
  EXPECT_EQ(events_.prompts[1].tokens.size(), 9u);
  EXPECT_EQ(events_.prompts[1].logprobs.size(), 9u);
  EXPECT_EQ(Text(), "abcdefghij");
}

TEST_F(PromptReportTest, OneTokenHasAnEchoAndNoLogprob) {
  SetPrompt(1, 0);
  PromptReport rated(Wanting(true, false), tokenizer_);
  Step(&rated, 1, true);
  EXPECT_TRUE(events_.prompts.empty());
  SetPrompt(1, 0);
  PromptReport echoed(Wanting(true, true), tokenizer_);
  Step(&echoed, 1, true);
  EXPECT_EQ(Text(), "a");
}

TEST_F(PromptReportTest, AQuestionHasItsPlaceBehindTheDocument) {
  SetPrompt(6, 1000);
  PromptReport report(Wanting(true, true), tokenizer_);
  Step(&report, 6, true);
  EXPECT_THAT(FirstPositions(), ElementsAre(1000, 1001));
  EXPECT_THAT(Logprobs(), ElementsAre(-1001, -1002, -1003, -1004, -1005));
  EXPECT_EQ(Text(), "abcdef");
}

TEST_F(PromptReportTest, EventsAreBounded) {
  SetPrompt(1000, 0);
  PromptReport report(Wanting(true, false), tokenizer_);
  for (const int64_t count : {600, 400}) Step(&report, count, true);
  EXPECT_THAT(FirstPositions(), ElementsAre(1, 257, 513, 601, 857));
  EXPECT_EQ(Logprobs().size(), 999u);
}

TEST_F(PromptReportTest, APromptThatIsReadAgainIsToldOnce) {
  PromptReport report(Wanting(true, true), tokenizer_);
  Step(&report, 5, true);
  sequence_.num_in_kv = 0;
  for (const int64_t count : {3, 3, 4}) Step(&report, count, true);
  EXPECT_THAT(FirstPositions(), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(Logprobs(), ElementsAre(-1, -2, -3, -4, -5, -6, -7, -8, -9));
  EXPECT_EQ(Text(), "abcdefghij");
}

}  // namespace
}  // namespace folio::test
