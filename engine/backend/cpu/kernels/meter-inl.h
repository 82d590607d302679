// What the vectors of an instruction set reach without a model: the ceilings of folio-bench.
#pragma once

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

uint32_t ReadBytes(const std::byte* data, int64_t bytes) {
  constexpr int kLines = 4;
  BitVec sums[kLines] = {};
  for (int64_t at = 0; at + 64 * kLines <= bytes; at += 64 * kLines) {
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) {
      __builtin_prefetch(data + at + 2048 + 64 * i);
      const BitVec line = LoadBits(data + at + 64 * i);
#pragma GCC unroll 4
      for (int k = 0; k < kRegs; ++k) sums[i].r[k] += line.r[k];
    }
  }
  uint32_t sum = 0;
  for (const BitVec& s : sums) {
    for (const BitReg& r : s.r) sum ^= r[0];
  }
  return sum;
}

float MultiplyAdd(int64_t steps, float x) {
  // Different values, or the compiler sees that one chain is enough.
  Reg sums[kMultiplyAddChains];
#pragma GCC unroll 16
  for (int i = 0; i < kMultiplyAddChains; ++i) sums[i] = SplatReg(x + static_cast<float>(i));
  const Reg factor = SplatReg(x);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kMultiplyAddChains; ++i) sums[i] = Fma(sums[i], factor, factor);
  }
  Reg sum = {};
#pragma GCC unroll 16
  for (int i = 0; i < kMultiplyAddChains; ++i) sum = sum + sums[i];
  return sum[0];
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
