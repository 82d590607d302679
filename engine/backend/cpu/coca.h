#pragma once

#include "engine/types/position.h"

namespace folio {

// Collinear constrained attention (Zhu et al. 2023; docs/methods.md, section 11.3) as ordinary
// rotary attention. A key is u >= 0 per rotated pair, standing for the pair (u, u) turned by its
// position n; a query is what is below. Vectors are in halves: pair m = elements (m, m + half).

// u [half] = relu(mean of both halves of t [2 half]).
void CocaKey(const float* t, int half, float* u);

// Strict forms: out [2 half] = (r^2, r^2) per pair with r = sqrt((a^2 + b^2) / 2) or (a + b) / 2 of
// q's pair (a, b). Turned by its position m, it gives sum 2 r^2 u cos((m - n) theta): a function of
// the distance.
void CocaStrictQuery(CocaQuery form, const float* q, int half, float* out);

// Slack form: out [2 half] = q * turned elementwise, where `turned` is q turned by its position m.
// It is not to be turned again: its logits depend on m and n, not on their distance alone.
void CocaSlackQuery(const float* q, const float* turned, int half, float* out);

}  // namespace folio
