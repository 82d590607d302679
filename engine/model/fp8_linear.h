#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace folio {

// A matrix of 8-bit floats and the scales of its blocks: weight = float * scale, rounded to fp32.
struct Fp8Linear {
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::span<const std::byte> floats;  // E4M3, [outputs][inputs]
  // Of a block of scales, the last ones cut: [ceil(outputs / rows)][ceil(inputs / columns)].
  int64_t block_rows = 1;
  int64_t block_columns = 1;
  std::span<const float> scales;
};

// The value of an 8-bit float E4M3: a sign, 4 bits of exponent with the bias 7, 3 of mantissa, no
// infinity; 0x7f and 0xff are NaN. Source: Micikevicius et al. 2022, FP8 formats for deep learning.
float Fp8ToFloat(uint8_t bits);

void Dequantise(const Fp8Linear& linear, float* out);  // [outputs][inputs]

}  // namespace folio
