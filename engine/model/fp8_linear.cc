#include "engine/model/fp8_linear.h"

#include <array>
#include <bit>
#include <limits>

namespace folio {
namespace {

std::array<float, 256> AllValues() {
  std::array<float, 256> values;
  for (int bits = 0; bits < 256; ++bits) values[bits] = Fp8ToFloat(static_cast<uint8_t>(bits));
  return values;
}

}  // namespace

float Fp8ToFloat(uint8_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const uint32_t sign = (bits & 0x80u) << 24;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // Scaling by 2^120 turns the exponent bias 7 into 127 and is exact for subnormals too.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

void Dequantise(const Fp8Linear& linear, float* out) {
  static const std::array<float, 256> kValues = AllValues();
  const int64_t scales_of_row = (linear.inputs + linear.block_columns - 1) / linear.block_columns;
  const std::byte* from = linear.floats.data();
  for (int64_t output = 0; output < linear.outputs; ++output) {
    const float* scales = &linear.scales[output / linear.block_rows * scales_of_row];
    for (int64_t input = 0; input < linear.inputs; ++input) {
      *out++ = kValues[static_cast<uint8_t>(*from++)] * scales[input / linear.block_columns];
    }
  }
}

}  // namespace folio
