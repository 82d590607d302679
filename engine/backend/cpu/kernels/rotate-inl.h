// Rotation of keys that are stored un-rotated: 16 tokens at a time, a token per lane.
#pragma once

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/types/kv_types.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

FOLIO_INLINE Vec LoadDimension(DType dtype, const std::byte* tile, int d) {
  if (dtype == DType::kF32) return Load(reinterpret_cast<const float*>(tile) + d * 16);
  const BitVec pairs = LoadBits(tile + d / 2 * 64);
  return d % 2 == 0 ? LowBf16(pairs) : HighBf16(pairs);
}

// The bf16 nearest to a finite value, in the high bits.
FOLIO_INLINE BitReg NearestBf16(Reg x) {
  const BitReg bits = (BitReg)x;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
}

FOLIO_INLINE void StoreBf16Pairs(Vec low, Vec high, std::byte* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) {
    const BitReg pairs = NearestBf16(low.r[i]) >> 16 | NearestBf16(high.r[i]);
    std::memcpy(to + i * kRegBytes, &pairs, sizeof(pairs));
  }
}

void RotateTile(DType dtype, const std::byte* from, int partner, const float* cos, const float* sin,
                int half, std::byte* to) {
  alignas(64) float lines[kMaxHeadDim * 16];
  float* out = dtype == DType::kF32 ? reinterpret_cast<float*>(to) : lines;
  for (int m = 0; m < half; ++m) {
    const Vec left = LoadDimension(dtype, from, m);
    const Vec right = LoadDimension(dtype, from, m + partner);
    const Vec c = Load(cos + m * 16), s = Load(sin + m * 16);
    Store(out + m * 16, left * c - right * s);
    Store(out + (m + half) * 16, right * c + left * s);
  }
  if (dtype == DType::kF32) return;
  for (int d = 0; d < 2 * half; d += 2) {
    StoreBf16Pairs(Load(lines + d * 16), Load(lines + (d + 1) * 16), to + d * 32);
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
