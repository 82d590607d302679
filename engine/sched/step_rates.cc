#include "engine/sched/step_rates.h"

#include <algorithm>
#include <numeric>

namespace folio {
namespace {

// Of a step, for each one after it: some hundred count, as machines that others use change soon.
constexpr double kFades = 0.99;
// From where the last step has left off few are enough.
constexpr int kRounds = 8;
// Places among the parts.
constexpr size_t kPrompts = 1, kAnswers = 2, kAnswerWork = 3, kTokens = 4, kAttended = 5;
// No step is so short that it alone would count.
constexpr double kLeastSeconds = 1e-5;

}  // namespace

StepLoad LoadOf(const StepWork& work) {
  return {.answers = static_cast<double>(work.num_answers),
          .answer_work = work.answer_work,
          .prompt_tokens = static_cast<double>(work.prompt_tokens),
          .prompt_work = work.prompt_work,
          .prompts = static_cast<double>(work.num_prompts)};
}

StepRates::Parts StepRates::CountsOf(const StepLoad& load) {
  return {1,
          load.prompts,
          load.answers,
          load.answer_work,
          load.prompt_tokens,
          std::max(0.0, load.prompt_work - load.prompt_tokens)};
}

double StepRates::Seconds(const StepLoad& load) const {
  const Parts counts = CountsOf(load);
  return std::inner_product(counts.begin(), counts.end(), parts_.begin(), 0.0);
}

StepLoad StepRates::AsLately(double answers, double prompt_tokens) const {
  // The first part counts the steps: its products are the sums of the other counts.
  const Parts& sums = products_[0];
  const auto of_each = [&sums](size_t all, size_t count) {
    return sums[count] > 0 ? sums[all] / sums[count] : 0.0;
  };
  return {
      .answers = answers,
      .answer_work = answers * of_each(kAnswerWork, kAnswers),
      .prompt_tokens = prompt_tokens,
      .prompt_work = prompt_tokens * (1 + of_each(kAttended, kTokens)),
      .prompts = prompt_tokens > 0 ? std::max(1.0, prompt_tokens * of_each(kPrompts, kTokens)) : 0};
}

// Coordinate descent on the normal equations, which keeps parts that steps do not tell apart.
void StepRates::Note(const StepLoad& load, double seconds) {
  ++num_steps_;
  const Parts counts = CountsOf(load);
  // By what was expected: short ones among steps that are alike are no surer than the others.
  const double expected = num_steps_ > kEnoughSteps ? Seconds(load) : seconds;
  const double weight = 1 / std::max(kLeastSeconds, expected);
  for (size_t i = 0; i < kParts; ++i) {
    sums_[i] = kFades * sums_[i] + weight * counts[i] * seconds;
    for (size_t j = 0; j < kParts; ++j) {
      products_[i][j] = kFades * products_[i][j] + weight * counts[i] * counts[j];
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kParts; ++i) {
      if (products_[i][i] <= 0) continue;
      double rest = sums_[i];
      for (size_t j = 0; j < kParts; ++j) rest -= j == i ? 0 : products_[i][j] * parts_[j];
      parts_[i] = std::max(0.0, rest / products_[i][i]);
    }
  }
}

}  // namespace folio
