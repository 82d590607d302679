#pragma once

#include <span>
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

  // Logits of one sequence's last scheduled token.
  struct Output {
    Sequence* sequence = nullptr;
    std::span<const float> logits;  // [vocab], valid until the next Run
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
  const std::vector<Output>& Run(const std::vector<ScheduledTokens>& step, int vocab_size);

 private:
  void AddSlice(const ScheduledTokens& part);
  // Log-probability of `token` under one row of logits.
  static float LogProb(std::span<const float> logits, int32_t token);

  Transformer* const transformer_;
  StepBatch batch_;
  std::vector<int32_t> tokens_;
  std::vector<int> logit_rows_;
  std::vector<Output> outputs_;
  std::vector<Scores> scores_;
};

}  // namespace folio
