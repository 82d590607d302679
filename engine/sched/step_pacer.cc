#include "engine/sched/step_pacer.h"

#include <algorithm>

#include "engine/types/plan_parts.h"

namespace folio {
namespace {

// So many steps with prompts are run at most before the answers are measured again.
constexpr int64_t kSteps = 64;
// Prompts get on, however short a step of answers is.
constexpr int64_t kLeastTokens = 1;
// What the steps of a machine differ by.
constexpr double kMargin = 0.6;
// What nobody notices: prompts may always take so long.
constexpr double kFreeSeconds = 0.005;
// Of steps with fewer tokens of prompts alone the time says little: weights are read for them all
// the same.
constexpr int64_t kEnoughTokens = 16;
constexpr double kShareOfNew = 0.25;

// Where steps differ the careful side is believed at once, the other by and by.
void Follow(double seconds, double* known) {
  seconds = std::max(0.0, seconds);
  *known = seconds > *known ? seconds : *known + kShareOfNew * (seconds - *known);
}

}  // namespace

bool StepPacer::IsMeasured(int64_t num_answers) const {
  return steps_since_ < kSteps && num_answers <= 2 * measured_answers_ &&
         measured_answers_ <= 2 * num_answers;
}

int64_t StepPacer::MostPromptTokens(int64_t num_answers) const {
  if (slowdown_ == 0 || num_answers == 0) return kUnbounded;
  return IsMeasured(num_answers) ? UsualPromptTokens(num_answers, answers_seconds_) : 0;
}

int64_t StepPacer::UsualPromptTokens(int64_t num_answers, double answers_seconds) const {
  if (slowdown_ == 0 || num_answers == 0) return kUnbounded;
  if (token_seconds_ == 0) return kLeastTokens;
  if (IsMeasured(num_answers)) answers_seconds = answers_seconds_;
  const double spare = std::max(kFreeSeconds, (slowdown_ - 1) * kMargin * answers_seconds);
  return std::max(kLeastTokens, static_cast<int64_t>(std::min(1e6, spare / token_seconds_)));
}

int64_t StepPacer::ChunkTokens() const {
  if (slowdown_ == 0 || token_seconds_ == 0) return 0;
  return static_cast<int64_t>(std::min(1e6, chunk_seconds_ / token_seconds_));
}

void StepPacer::NoteAnswersAlone(int64_t num_answers, double seconds) {
  const bool longer = IsMeasured(num_answers) && seconds > answers_seconds_;
  answers_seconds_ =
      longer ? answers_seconds_ + kShareOfNew * (seconds - answers_seconds_) : seconds;
  measured_answers_ = num_answers;
  steps_since_ = 0;
}

void StepPacer::Note(const StepWork& work, double seconds) {
  const int64_t num_answers = work.num_answers;
  const int64_t prompt_tokens = work.prompt_tokens;
  const int64_t num_chunks = work.num_chunks;
  if (num_answers > 0 && prompt_tokens == 0 && num_chunks == 0) {
    return NoteAnswersAlone(num_answers, seconds);
  }
  ++steps_since_;
  if (num_answers == 0 ? prompt_tokens < kEnoughTokens : !IsMeasured(num_answers)) return;
  const double of_prompts = seconds - (num_answers == 0 ? 0 : answers_seconds_);
  // Prompts alone complete chunks in all of their steps: those count as part of the tokens.
  if (num_chunks > 0 && num_answers > 0) {
    const double of_tokens = token_seconds_ * static_cast<double>(prompt_tokens);
    Follow((of_prompts - of_tokens) / static_cast<double>(num_chunks), &chunk_seconds_);
  } else {
    Follow(of_prompts / static_cast<double>(prompt_tokens), &token_seconds_);
  }
}

}  // namespace folio
