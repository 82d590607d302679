#pragma once

#include <cstdint>
#include <span>

namespace folio {

// A matrix of GPTQ or AWQ as its files hold it: eight integers of 4 bits in a word.
//   weight [output][input] = scale * (integer - zero), with the scale and zero of the input's group
struct Int4Linear {
  // GPTQ: words [inputs / 8][outputs], bits 4 i of one are those of its input i.
  // AWQ (gemm): words [inputs][outputs / 8], bits 4 i are those of its output 0, 2, 4, 6, 1, 3,
  // 5, 7.
  enum class Order : unsigned char { kGptq, kAwq };
  Order order = Order::kGptq;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::span<const uint32_t> integers;
  // [groups][outputs / 8] words, along the outputs in the order of the integers (GPTQ: 0..7).
  std::span<const uint32_t> zeros;
  // Each is kept one lower than it is, modulo 16.
  bool zeros_below = false;
  std::span<const float> scales;   // [groups][outputs]
  std::span<const int32_t> group;  // [inputs], each in [0, groups)
};

// Sources: Frantar et al. 2023 (GPTQ) and Lin et al. 2024 (AWQ), in the layouts of AutoGPTQ and
// AutoAWQ. Every product is exact.
void Dequantise(const Int4Linear& linear, float* out);  // [outputs][inputs]

// Whether every zero (Int4Linear::zeros) is 8: then all numbers are integers from -8 to 7 times
// scales.
bool AreEights(std::span<const uint32_t> zeros, bool zeros_below);

}  // namespace folio
