#include "engine/backend/cpu/integer_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/base/half.h"

namespace folio::cpu {

uint16_t QuantiseWeights(PanelFormat::Codec codec, const float* weights, int count,
                         int8_t* integers) {
  const float most = *std::max_element(
      weights, weights + count, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const bool wide = codec == PanelFormat::Codec::kInt8;
  const uint16_t bits = FloatToBf16(wide ? std::fabs(most) / 127.0f : most / -8.0f);
  const float scale = Bf16ToFloat(bits);
  const float low = wide ? -127.0f : -8.0f;
  const float high = wide ? 127.0f : 7.0f;
  for (int i = 0; i < count; ++i) {
    const float nearest = scale == 0 ? 0.0f : std::nearbyint(weights[i] / scale);
    integers[i] = static_cast<int8_t>(std::clamp(nearest, low, high));
  }
  return bits;
}

}  // namespace folio::cpu
