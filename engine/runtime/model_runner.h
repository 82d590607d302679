#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/model/transformer.h"
#include "engine/sched/scheduler.h"

namespace folio {

// DATA_LOSS: there is nothing to draw or rate for the token at `position`.
absl::Status NotFiniteError(int64_t position);

// Turns a scheduled step into a batch and runs it. Owns the batch arrays so that a step allocates
// little. Engine thread only; borrows the transformer.
class ModelRunner {
 public:
  explicit ModelRunner(Transformer* transformer) : transformer_(transformer) {}

  // The token that follows a sequence's last known one. The sequence itself may be gone when the
  // step is finished.
  struct Output {
    RequestId id = 0;
    Sample sample;
  };

  // Log-probabilities of a scored sequence's tokens that follow the rows of the step; and beside
  // each the most likely ones, if any are asked for.
  struct Scores {
    RequestId id = 0;
    int64_t first_position = 0;
    std::vector<float> logprobs;
    std::vector<std::vector<TokenLogprob>> top_logprobs = {};
    // Position of the first token whose logits were not finite; none: all were.
    std::optional<int64_t> not_finite = {};
  };

  struct Results {
    std::vector<Output> outputs;  // of sequences whose last known token was in the step
    std::vector<Scores> scores;
  };

  // Makes room on the device for one more part of the step that Start is to be given next.
  absl::Status Reserve(const ScheduledTokens& part, bool first) {
    return transformer_->Reserve(SliceOf(part), first);
  }
  // Starts a step. A token that is kNotDrawnYet is one that the step before it draws.
  void Start(const std::vector<ScheduledTokens>& step);
  // Waits for the oldest step that was started. Results mean nothing once the device has failed.
  Results Finish();
  Results Run(const std::vector<ScheduledTokens>& step) {
    Start(step);
    return Finish();
  }

 private:
  struct Started {
    Results results;
    // Of each task: whose token it draws; nobody's: it scores.
    std::vector<std::optional<RequestId>> draws;
  };
  static SequenceSlice SliceOf(const ScheduledTokens& part);
  void AddSlice(const ScheduledTokens& part);
  void AddScores(const ScheduledTokens& part, Started* started);
  void AddDraw(const ScheduledTokens& part, Started* started);

  Transformer* const transformer_;
  StepBatch batch_;
  std::vector<Sample> samples_;
  std::deque<Started> started_;
  std::vector<std::optional<RequestId>> last_draws_;  // of the step before
};

}  // namespace folio
