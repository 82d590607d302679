#pragma once

#include <cstdint>

namespace folio {

// How many tokens of prompts a step may read beside answers, so that it takes at most `slowdown`
// times as long as a step of these answers alone, or 5 ms longer. Learns from the steps that ran:
// what the answers take, in a step of their own whenever their number has changed much and from
// time to time; and what each token of a prompt adds. Changes when a token comes, never which.
// Engine thread only.
class StepPacer {
 public:
  // 0: no bound.
  explicit StepPacer(double slowdown) : slowdown_(slowdown) {}

  // Of a step with num_answers answers; 0: they are to be measured alone.
  int64_t MostPromptTokens(int64_t num_answers) const;

  // A step took `seconds`.
  void Note(int64_t num_answers, int64_t prompt_tokens, double seconds);

 private:
  bool IsMeasured(int64_t num_answers) const;

  const double slowdown_;
  // Of a step of so many answers; 0: none has run.
  int64_t measured_answers_ = 0;
  double answers_seconds_ = 0;
  int64_t steps_since_ = 0;
  double token_seconds_ = 0;  // 0: not known
};

}  // namespace folio
