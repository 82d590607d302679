// Retrieval from a dictionary of random identifiers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "client/eval/task.h"
#include "client/eval/token_counter.h"

namespace folio::eval {

// Source: Liu et al. 2023 (Lost in the Middle), key-value retrieval: a JSON object of random
// 128-bit identifiers, one of whose values is asked for. As many pairs as fit; the asked one moves
// through the object with the trials. Const after construction.
class KvRetrievalTask final : public EvalTask {
 public:
  // `count` must stay valid as long as the task.
  KvRetrievalTask(TokenCounter count, uint64_t seed) : count_(std::move(count)), seed_(seed) {}

  std::string name() const override { return "kv-retrieval"; }
  uint32_t max_new_tokens() const override { return 64; }
  absl::StatusOr<Trial> MakeTrial(uint64_t target_tokens, int trial_idx,
                                  int num_trials) const override;
  // Whether the answer contains the value.
  bool IsCorrect(const Trial& trial, const std::string& answer) const override;

 private:
  const TokenCounter count_;
  const uint64_t seed_;
};

}  // namespace folio::eval
