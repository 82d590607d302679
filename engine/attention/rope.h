#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/attention_plan.h"

namespace folio {

// Rotary frequencies theta_m = base^(-2m/rotary_dim), m = 0..rotary_dim/2-1 (Su et al. 2021),
// followed by zeros for the pairs of head_dim that are not rotated; rounded to fp32 as checkpoints
// were trained with.
std::vector<float> RopeTheta(int head_dim, int rotary_dim, double base);

// cos and sin of position * theta_m, theta.size() values each. Angles are formed in double, so any
// int64 position below 2^53 is exact. `position` may be negative.
void FillRotation(const std::vector<float>& theta, int64_t position, float* cos, float* sin);

// The table of a text of `num_tokens` tokens under a dynamic base.
Rotary DynamicRotary(const DynamicBase& dynamic, int head_dim, int64_t num_tokens);

}  // namespace folio
