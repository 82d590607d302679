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
  if (codec == PanelFormat::Codec::kInt8) return {-128.0f, 127.0f};
  return {-8.0f, 7.0f};
}

bool HasIntegers(PanelFormat::Codec codec, const float* weights, int count, float scale) {
  const auto [low, high] = RangeOf(codec);
  bool has = true;
  for (int i = 0; i < count; ++i) {
    const float integer = weights[i] / scale;
    has &= integer > low - 0.5f && integer < high + 0.5f;
  }
  return has;
}

}  // namespace

float ScaleFor(PanelFormat::Codec codec, const float* weights, int count, float given) {
  if (given != 0 && HasIntegers(codec, weights, count, given)) return given;
  const float most = FirstLargest(weights, count);
  return codec == PanelFormat::Codec::kInt8 ? std::fabs(most) / 127.0f : most / -8.0f;
}

float UnitOf(std::span<const float> scales) {
  float most = 0;
  for (const float scale : scales) most = std::max(most, std::fabs(scale));
  return most == 0 ? 1.0f : std::ldexp(1.0f, std::max(std::ilogb(most) - 15, -126));
}

uint16_t ScaleBits(float scale, float unit) {
  constexpr float kLargest = 65504;  // what is between it and 2^16 would round to that
  return FloatToFp16(std::clamp(scale / unit, -kLargest, kLargest));
}

void QuantiseWeights(PanelFormat::Codec codec, const float* weights, int count, float scale,
                     int8_t* integers) {
  if (scale == 0) {
    std::fill(integers, integers + count, int8_t{0});
    return;
  }
  const auto [low, high] = RangeOf(codec);
  for (int i = 0; i < count; ++i) {
    integers[i] = static_cast<int8_t>(std::clamp(Nearest(weights[i] / scale), low, high));
  }
}

}  // namespace folio::cpu
