#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/limits.h"

namespace folio {

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;

  bool operator==(const TokenBias&) const = default;
};

// temperature 0 is greedy; top_k 0, top_p 1, min_p 0, repetition_penalty 1 and the other penalties
// 0 switch a filter off.
struct SamplingParams {
  float temperature = 0.0f;
  int top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  // Per time that a token is in the answer already, and once for those that are.
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  // Each token once.
  std::vector<TokenBias> logit_bias = {};
  // Sequences that the end of the prompt and the answer together must not get.
  std::vector<std::vector<int32_t>> bad_words = {};
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};

// Tokens that a sequence has seen, for the repetition penalty. One bit per vocabulary entry.
class SeenTokens {
 public:
  explicit SeenTokens(int vocab_size) : words_((vocab_size + 31) / 32, 0) {}
  void Add(int32_t token) { words_[token / 32] |= 1u << (token % 32); }
  bool Contains(int32_t token) const { return (words_[token / 32] >> (token % 32) & 1u) != 0; }
  const std::vector<uint32_t>& words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
};

// What is added to the logit of one token before a draw: before the repetition penalty, and after
// it. -infinity after it: the token is not drawn, unless no other one is left.
struct LogitChange {
  int32_t token = 0;
  float before = 0.0f;
  float after = 0.0f;
};

// What is wanted of the logits of one row of a step: a draw, or the log-probability of a token.
struct LogitsTask {
  int row = 0;
  // A token is drawn; null: none.
  const SamplingParams* sampling = nullptr;
  // Of the drawn token in its answer.
  uint64_t index = 0;
  // Null unless repetition_penalty != 1.
  const SeenTokens* seen = nullptr;
  // Ascending by token, each once; null: none. To be read when the step is started.
  const std::vector<LogitChange>* changes = nullptr;
  // Tokens that may be drawn, one bit each (AnswerState::allowed); null: all. To be read when the
  // step is started.
  const std::vector<uint32_t>* allowed = nullptr;
  // Most likely tokens to list beside the drawn or scored one; -1: of a draw no log-probabilities
  // at all.
  int num_top_logprobs = -1;
  // Without a draw: whose log-probability is wanted.
  int32_t scored_token = 0;
};

// The answer to one LogitsTask.
struct Sample {
  int32_t token = 0;
  // Of the drawn or scored token under the model, before any filter. Filled only if asked for.
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
  // Whether all logits of the row were finite. If not, the rest means nothing.
  bool finite = true;
};

}  // namespace folio
