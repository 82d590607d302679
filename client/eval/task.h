// What a quality measurement is made of. A new task is one file that implements EvalTask, and one
// line where the command line tool makes it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace folio::eval {

// One question with a known answer. Inline, the prompt is `context`, a space and `question`.
struct Trial {
  std::string context;
  std::string question;
  std::string expected;
  // Place of the needle: 0 = at the beginning, 1 = just before the question.
  double depth = 0;
  // Tokens of the whole prompt with the beginning-of-sequence token, as counted before sending.
  uint64_t prompt_tokens = 0;
  // Tokens from the first one of the needle to the end of the prompt.
  uint64_t needle_distance_tokens = 0;
  uint64_t needle_tokens = 0;
};

// Const calls are thread-safe.
class EvalTask {
 public:
  virtual ~EvalTask() = default;
  virtual std::string name() const = 0;
  virtual uint32_t max_new_tokens() const = 0;
  // The trial with this index out of `num_trials`, at most `target_tokens` long. The same arguments
  // always give the same trial.  Errors: INVALID_ARGUMENT if the length is too small for the task.
  virtual absl::StatusOr<Trial> MakeTrial(uint64_t target_tokens, int trial_idx,
                                          int num_trials) const = 0;
  virtual bool IsCorrect(const Trial& trial, const std::string& answer) const = 0;
};

}  // namespace folio::eval
