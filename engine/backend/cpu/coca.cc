#include "engine/backend/cpu/coca.h"

#include <algorithm>

namespace folio {

void CocaKey(const float* t, int half, float* u) {
  for (int m = 0; m < half; ++m) u[m] = std::max(0.0f, (t[m] + t[m + half]) / 2);
}

void CocaStrictQuery(CocaQuery form, const float* q, int half, float* out) {
  for (int m = 0; m < half; ++m) {
    const float a = q[m];
    const float b = q[m + half];
    const float mean = (a + b) / 2;
    out[m] = out[m + half] = form == CocaQuery::kNorm ? (a * a + b * b) / 2 : mean * mean;
  }
}

void CocaSlackQuery(const float* q, const float* turned, int half, float* out) {
  for (int d = 0; d < 2 * half; ++d) out[d] = q[d] * turned[d];
}

}  // namespace folio
