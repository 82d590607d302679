#include "engine/attention/prompt_truncation.h"

#include <algorithm>

namespace folio {

int64_t NumKeptTokens(const PromptTruncation& truncation, int64_t num_tokens,
                      int64_t max_new_tokens) {
  if (!truncation.enabled()) return num_tokens;
  const int64_t room = std::max<int64_t>(2, truncation.reach_tokens - max_new_tokens);
  return std::min({num_tokens, truncation.keep_tokens, room});
}

std::vector<int32_t> TruncatePrompt(const PromptTruncation& truncation,
                                    const std::vector<int32_t>& tokens, int64_t max_new_tokens) {
  const int64_t keep =
      NumKeptTokens(truncation, static_cast<int64_t>(tokens.size()), max_new_tokens);
  int64_t head = keep;
  if (truncation.side == PromptTruncation::Side::kLeft) head = 0;
  if (truncation.side == PromptTruncation::Side::kCenter) head = keep / 2;
  if (keep == static_cast<int64_t>(tokens.size())) return tokens;
  std::vector<int32_t> kept(tokens.begin(), tokens.begin() + head);
  kept.insert(kept.end(), tokens.end() - (keep - head), tokens.end());
  return kept;
}

}  // namespace folio
