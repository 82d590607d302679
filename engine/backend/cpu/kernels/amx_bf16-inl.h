// Numbers in bf16 as the matrix unit takes them (amx_tiles.h).
#pragma once

#include <cstring>

#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Pairs of bf16 that one product takes of a row.
constexpr int kTilePairs = kTileRows;

FOLIO_INLINE BitReg RoundedToBf16(Reg x) {
  const BitReg bits = (BitReg)x;
  const BitReg rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // What is not a number stays so.
  return (BitReg)(x == x ? rounded : BitReg{} + 0x7fc00000u) & 0xffff0000u;
}

// bf16 of 16 numbers, to the nearest, ties to even.
FOLIO_INLINE void StoreBf16(std::byte* out, Vec x) {
#if defined(__AVX512BF16__)
  PackPairs(reinterpret_cast<const float*>(&x), 16, reinterpret_cast<Pair*>(out));
#else
  using Shorts = uint16_t __attribute__((vector_size(kRegBytes / 2)));
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) {
    const Shorts shorts = __builtin_convertvector(RoundedToBf16(x.r[i]) >> 16, Shorts);
    std::memcpy(out + i * sizeof(shorts), &shorts, sizeof(shorts));
  }
#endif
}

// The same of 32 numbers: one store is what a load of a tile waits for the least.
FOLIO_INLINE void StoreBf16(std::byte* out, Vec first, Vec second) {
#if defined(__AVX512BF16__)
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)second.r[0], (__m512)first.r[0]);
  std::memcpy(out, &both, sizeof(both));
#else
  StoreBf16(out, first);
  StoreBf16(out + 32, second);
#endif
}

// Weights of a softmax as products take them, whose sum is then the one that the values are divided
// by.
struct TileWeights {
  static FOLIO_INLINE Vec Round(Vec x) {
    return ForRegs<Vec>([&](int i) { return (Reg)RoundedToBf16(x.r[i]); });
  }
};

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
