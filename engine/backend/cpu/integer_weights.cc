#include "engine/backend/cpu/integer_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/base/half.h"

namespace folio::cpu {

namespace {

constexpr int32_t kMagnitude = 0x7fffffff;

// The first of the largest in magnitude. Finite numbers of one sign are ordered as their bits are,
// which compilers vectorise.
float FirstLargest(const float* weights, int count) {
  int32_t most_positive = 0;
  int32_t most_negative = 0;
  for (int i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<int32_t>(weights[i]);
    most_positive = std::max(most_positive, bits);
    most_negative = std::max(most_negative, bits ^ INT32_MIN);
  }
  if (most_positive > most_negative) return std::bit_cast<float>(most_positive);
  if (most_negative > most_positive) return -std::bit_cast<float>(most_negative);
  return *std::find_if(weights, weights + count, [=](float weight) {
    return (std::bit_cast<int32_t>(weight) & kMagnitude) == most_positive;
  });
}

// To the nearest, ties to even. REQUIRES: a magnitude below 2^22.
float Nearest(float value) {
  constexpr float kIntegersOnly = 0x1.8p23f;  // numbers of this size have no fraction
  return (value + kIntegersOnly) - kIntegersOnly;
}

struct Range {
  float low;
  float high;
};
Range RangeOf(PanelFormat::Codec codec) {
  if (codec == PanelFormat::Codec::kInt8) return {-127.0f, 127.0f};
  return {-8.0f, 7.0f};
}

}  // namespace

uint16_t QuantiseWeights(PanelFormat::Codec codec, const float* weights, int count,
                         int8_t* integers) {
  const bool wide = codec == PanelFormat::Codec::kInt8;
  const float most = FirstLargest(weights, count);
  const uint16_t bits = FloatToBf16(wide ? std::fabs(most) / 127.0f : most / -8.0f);
  const float scale = Bf16ToFloat(bits);
  if (scale == 0) {
    std::fill(integers, integers + count, int8_t{0});
    return bits;
  }
  const auto [low, high] = RangeOf(codec);
  for (int i = 0; i < count; ++i) {
    const float nearest = Nearest(weights[i] / scale);
    integers[i] = static_cast<int8_t>(std::clamp(nearest, low, high));
  }
  return bits;
}

std::optional<uint16_t> KeepIntegers(PanelFormat::Codec codec, const float* weights, int count,
                                     float scale, int8_t* integers) {
  const uint16_t bits = FloatToBf16(scale);
  const float rounded = Bf16ToFloat(bits);
  if (rounded == 0 || !std::isfinite(rounded)) return std::nullopt;
  const auto [low, high] = RangeOf(codec);
  for (int i = 0; i < count; ++i) {
    // An integer of 8 bits stays within a quarter of itself.
    const float given = weights[i] / rounded;
    if (!(given > low - 0.5f && given < high + 0.5f)) return std::nullopt;
    integers[i] = static_cast<int8_t>(Nearest(given));
  }
  return bits;
}

}  // namespace folio::cpu
