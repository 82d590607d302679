#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/attention_plan.h"

namespace folio {

// How many of `num_tokens` prompt tokens a plan keeps before an answer of max_new_tokens.
int64_t NumKeptTokens(const PromptTruncation& truncation, int64_t num_tokens,
                      int64_t max_new_tokens);

// The prompt that is left. Half of each end if the center is cut; an odd number loses one.
std::vector<int32_t> TruncatePrompt(const PromptTruncation& truncation,
                                    const std::vector<int32_t>& tokens, int64_t max_new_tokens);

}  // namespace folio
