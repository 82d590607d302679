#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/sched/step_pacer.h"

namespace folio {

// What is in a step, of which there may be fractions on the average.
struct StepLoad {
  double answers = 0;
  double answer_work = 0;
  double prompt_tokens = 0;
  double prompt_work = 0;
  double prompts = 0;
};
StepLoad LoadOf(const StepWork& work);

// How long steps take: a part that each has (its weights are read), and one for each prompt with
// tokens in it, for each of these and for what they attend to (WorkCosts), for each answer and for
// what it attends to. Least squares over the steps that ran, of which later ones
// count more, with the variance that grows with the time; no part is below 0. A plain value; not
// thread-safe.
class StepRates {
 public:
  void Note(const StepLoad& load, double seconds);
  // Enough steps have run to say something.
  bool known() const { return num_steps_ >= kEnoughSteps; }
  // Of a step. 0 if nothing is known.
  double Seconds(const StepLoad& load) const;
  // So many answers and tokens of prompts, which attend to as much as those of the last steps did.
  StepLoad AsLately(double answers, double prompt_tokens) const;

 private:
  static constexpr int64_t kEnoughSteps = 16;
  static constexpr size_t kParts = 6;
  using Parts = std::array<double, kParts>;
  static Parts CountsOf(const StepLoad& load);

  int64_t num_steps_ = 0;
  std::array<Parts, kParts> products_ = {};
  Parts sums_ = {};
  Parts parts_ = {};
};

}  // namespace folio
