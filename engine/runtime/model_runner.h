#pragma once

#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/model/transformer.h"
#include "engine/sched/scheduler.h"

namespace folio {

// Turns a scheduled step into a batch and runs it. Owns the batch arrays so that a step allocates
// nothing. Engine thread only; borrows the transformer.
class ModelRunner {
 public:
  explicit ModelRunner(Transformer* transformer) : transformer_(transformer) {}

  // The token that follows a sequence's last known one.
  struct Output {
    Sequence* sequence = nullptr;
    Sample sample;
  };

  // Log-probabilities of a scored sequence's tokens that follow the rows of the step.
  struct Scores {
    Sequence* sequence = nullptr;
    int64_t first_position = 0;
    std::vector<float> logprobs;
  };

  // Of the last Run.
  const std::vector<Scores>& scores() const { return scores_; }

  // Runs the step and returns the sequences that need a next token: those whose last known token is
  // in it.
  std::vector<Output>& Run(const std::vector<ScheduledTokens>& step);

 private:
  void AddSlice(const ScheduledTokens& part);
  void AddLogits(const ScheduledTokens& part);

  Transformer* const transformer_;
  StepBatch batch_;
  std::vector<Sample> samples_;
  std::vector<Output> outputs_;
  std::vector<Scores> scores_;
};

}  // namespace folio
