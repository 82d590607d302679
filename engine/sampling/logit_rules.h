#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/types/sampling.h"

namespace folio {

// Which logits of an answer are changed before each draw: biases, penalties of what the answer has
// already, and tokens that must not come next. One per sequence; engine thread only.
class LogitRules {
 public:
  // Borrows `params`. Each of `ending` ends the answer, and is not drawn before min_new_tokens.
  LogitRules(const SamplingParams& params, std::vector<int32_t> ending, int min_new_tokens);

  // Whether draws under these parameters need rules at all.
  static bool AreNeeded(const SamplingParams& params, int min_new_tokens);

  // Sets changes() for the first token of the answer. `prompt`: its last tokens, any number.
  void Begin(std::span<const int32_t> prompt) { SetMasks(prompt); }
  // Sets changes() for the token after the last one of `tokens`, which is new in the answer. The
  // others are the answer before it and, before that, tokens of Begin.
  void Add(std::span<const int32_t> tokens);

  // As LogitsTask wants them.
  const std::vector<LogitChange>& changes() const { return changes_; }
  // Whether changes() for the next token depend on the last one. Once they do not, they never will.
  bool FollowTokens() const;
  // Whether the token must not come next.
  bool Masks(int32_t token) const;

 private:
  // Added if there is none. Valid until the next call.
  LogitChange& ChangeOf(int32_t token);
  void SetMasks(std::span<const int32_t> tokens);
  void Mask(int32_t token);

  const SamplingParams& params_;
  const std::vector<int32_t> ending_;
  const int min_new_tokens_;
  int num_new_tokens_ = 0;
  std::unordered_map<int32_t, int> counts_;  // in the answer
  std::vector<LogitChange> changes_;
  // What is masked for the next token only, as it is otherwise.
  std::vector<LogitChange> masked_;
};

}  // namespace folio
