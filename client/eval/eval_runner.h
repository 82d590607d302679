// Runs the trials of a task against a server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/backoff.h"
#include "client/client.h"
#include "client/eval/methods.h"
#include "client/eval/task.h"

namespace folio::eval {

struct TrialResult {
  std::string strategy;
  uint64_t target_tokens = 0;
  int trial_idx = 0;
  double depth = 0;
  std::string expected;
  std::string answer;
  bool correct = false;
  uint64_t prompt_tokens = 0;
  uint64_t needle_distance_tokens = 0;
  uint64_t needle_tokens = 0;
  // LM-Infinite: whether the whole needle is among the recent tokens that the strategy keeps
  // visible.
  std::optional<bool> needle_in_window;
  double ttft_seconds = 0;
  uint64_t device_kv_bytes_peak = 0;
  // What the heads chose, if the plan asks for it.
  std::vector<v1::LayerEvidence> layers = {};
  // One of EvalPlan::known.
  bool known = false;
  // Not OK: there is no answer, and the trial counts neither as right nor as wrong.
  absl::Status status;
};

struct EvalPlan {
  std::vector<Method> methods;
  std::vector<uint64_t> lengths_tokens;
  int num_trials = 50;
  // Trials that are asked at the same time.
  int concurrency = 4;
  // Prompts above it are uploaded as a document.
  uint64_t max_inline_prompt_bytes = 0;
  // Results of an earlier run: their trials are not asked again.
  std::vector<TrialResult> known;
  bool layer_evidence = false;
  // For answers that the server cannot give now.
  client::RetryPolicy retry;
  client::CancelToken cancel;
};

// Asks every trial under every strategy, greedily; the same trial goes to all of them. `on_result`
// is called for each answer, one call at a time, on threads of the runner. The results are ordered
// by length, trial and strategy. Blocks. Errors: of making the trials; CANCELLED; UNAVAILABLE if
// the server stays away. Other errors of the server are results.
absl::StatusOr<std::vector<TrialResult>> RunEval(
    client::Client& client, const EvalTask& task, const EvalPlan& plan,
    const std::function<void(const TrialResult&)>& on_result);

}  // namespace folio::eval
