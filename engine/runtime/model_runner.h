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

  // Runs the step and returns the sequences that need a next token: those whose last known token is
  // in it.
  const std::vector<Output>& Run(const std::vector<ScheduledTokens>& step, int vocab_size);

 private:
  void AddSlice(const ScheduledTokens& part);

  Transformer* const transformer_;
  StepBatch batch_;
  std::vector<int32_t> tokens_;
  std::vector<int> logit_rows_;
  std::vector<Output> outputs_;
};

}  // namespace folio
