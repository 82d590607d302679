#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/tensor/tensor_view.h"

namespace folio {

// Numbers of the size of Bits whose exponent has all bits set are infinite or NaN; the sign apart,
// these have the largest bits (IEEE 754, and bf16 likewise).
//   exponent  those bits: 0x7f800000 of fp32, 0x7c00 of fp16, 0x7f80 of bf16
// Index of the first one, -1: none. A constant number at a time, which compilers vectorise.
template <typename Bits>
int64_t FirstNonFinite(const Bits* bits, int64_t count, Bits exponent) {
  constexpr int64_t kBlock = 256;
  constexpr Bits kMagnitude = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  const auto bad = [=](Bits value) { return static_cast<Bits>(value & kMagnitude) >= exponent; };
  int64_t begin = 0;
  for (; begin + kBlock <= count; begin += kBlock) {
    Bits any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= static_cast<Bits>(bad(bits[begin + i]) ? -1 : 0);
    if (any != 0) break;
  }
  const Bits* found = std::find_if(bits + begin, bits + count, bad);
  return found == bits + count ? -1 : found - bits;
}

// Index of the first element that is infinite or NaN, -1: none. fp32, fp16 and bf16 only.
inline int64_t FirstNonFinite(const TensorView& view) {
  const int64_t count = view.num_elements();
  if (view.dtype == DType::kF32) {
    return FirstNonFinite<int32_t>(static_cast<const int32_t*>(view.data), count, 0x7f800000);
  }
  return FirstNonFinite<int16_t>(static_cast<const int16_t*>(view.data), count,
                                 view.dtype == DType::kBf16 ? 0x7f80 : 0x7c00);
}

}  // namespace folio
