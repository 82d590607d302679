#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/attention_plan.h"

namespace folio {

// How many of `num_tokens` prompt tokens a plan keeps before an answer of max_new_tokens.
int64_t NumKeptTokens(const PromptTruncation& truncation, int64_t num_tokens,
                      int64_t max_new_tokens);

// The prompt that is left. If the center is cut, keep / 2 tokens of the front and the rest from the
// back, as the authors' code does (Han et al. 2024: tokens[:T // 2] + tokens[-T // 2:], which
// rounds away from zero).
std::vector<int32_t> TruncatePrompt(const PromptTruncation& truncation,
                                    const std::vector<int32_t>& tokens, int64_t max_new_tokens);

}  // namespace folio
