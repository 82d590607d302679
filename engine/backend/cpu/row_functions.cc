#include "engine/backend/cpu/row_functions.h"

#include <cmath>

namespace folio {

void LayerNormRow(const float* x, std::span<const float> weight, std::span<const float> bias,
                  double eps, float* out) {
  const auto width = static_cast<int64_t>(weight.size());
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(width);
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
  for (int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<float>((x[i] - mean) * scale) * weight[i];
    if (!bias.empty()) out[i] += bias[i];
  }
}

float GeluErf(float x) {
  constexpr float kHalfRoot = 0.70710678f;  // sqrt(1 / 2)
  return 0.5f * x * (1.0f + std::erf(x * kHalfRoot));
}

float GeluTanh(float x) {
  constexpr float kTanhRoot = 0.79788456f;  // sqrt(2 / pi)
  return 0.5f * x * (1.0f + std::tanh(kTanhRoot * (x + 0.044715f * x * x * x)));
}

void SoftCapRow(float cap, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

}  // namespace folio
