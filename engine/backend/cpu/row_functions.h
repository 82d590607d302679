#pragma once

#include <cstdint>
#include <span>

namespace folio {

// Functions of one row that take too little time to be worth vectors.

//   (x - mean) / sqrt(variance + eps) * weight + bias      bias may be empty, out x
void LayerNormRow(const float* x, std::span<const float> weight, std::span<const float> bias,
                  double eps, float* out);

// Gaussian error linear unit: exact, or in its tanh approximation.
float GeluErf(float x);
float GeluTanh(float x);

//   x = cap * tanh(x / cap)
void SoftCapRow(float cap, int64_t count, float* x);

}  // namespace folio
