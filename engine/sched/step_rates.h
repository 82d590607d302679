#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace folio {

// How long steps take: a part that each has (its weights are read), one for each answer and one for
// each unit of work of its prompts (WorkCosts). Least squares over the steps that ran, of which
// later ones count more; no part is below 0. A plain value; not thread-safe.
class StepRates {
 public:
  void Note(int64_t num_answers, double prompt_work, double seconds);
  // Enough steps have run to say something.
  bool known() const { return num_steps_ >= kEnoughSteps; }
  // Of a step. 0 if nothing is known.
  double Seconds(double num_answers, double prompt_work) const {
    return parts_[0] + parts_[1] * num_answers + parts_[2] * prompt_work;
  }

 private:
  static constexpr int64_t kEnoughSteps = 16;
  static constexpr size_t kParts = 3;

  int64_t num_steps_ = 0;
  std::array<std::array<double, kParts>, kParts> products_ = {};
  std::array<double, kParts> sums_ = {};
  std::array<double, kParts> parts_ = {};
};

}  // namespace folio
