#include "engine/sched/step_rates.h"

#include <algorithm>

namespace folio {
namespace {

// Of a step, for each one after it: some hundred count.
constexpr double kFades = 0.995;
// From where the last step has left off few are enough.
constexpr int kRounds = 8;

}  // namespace

// Coordinate descent on the normal equations, which keeps parts that steps do not tell apart.
void StepRates::Note(int64_t num_answers, double prompt_work, double seconds) {
  ++num_steps_;
  const std::array<double, kParts> counts = {1, static_cast<double>(num_answers), prompt_work};
  for (size_t i = 0; i < kParts; ++i) {
    sums_[i] = kFades * sums_[i] + counts[i] * seconds;
    for (size_t j = 0; j < kParts; ++j) {
      products_[i][j] = kFades * products_[i][j] + counts[i] * counts[j];
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
