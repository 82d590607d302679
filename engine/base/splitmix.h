#pragma once

#include <cstdint>

namespace folio {

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014): each bit of z decides about half of the
// bits of the result. Kernels have the same one (backend/cuda/kernel_math.h).
constexpr uint64_t SplitMix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace folio
