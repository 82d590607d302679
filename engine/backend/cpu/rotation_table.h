#pragma once

#include <cstdint>
#include <vector>

#include "engine/attention/rope.h"

namespace folio {

// cos and sin of the rotary angles at multiples of a stride, grown on demand. Grow on the engine
// thread only; reads from any thread in between.
class RotationTable {
 public:
  RotationTable(std::vector<float> theta, int64_t stride)
      : theta_(std::move(theta)), stride_(stride), half_(static_cast<int>(theta_.size())) {}

  // Makes entries 0 .. count-1 available.
  void Grow(int64_t count);

  // half values each, for position index * stride. REQUIRES: index < the largest count grown to.
  const float* Cos(int64_t index) const { return &values_[index * 2 * half_]; }
  const float* Sin(int64_t index) const { return &values_[index * 2 * half_ + half_]; }

  // Fetches what Cos and Sin of an index will read into the cache.
  void Fetch(int64_t index) const {
    constexpr int kLineFloats = 16;
    for (int i = 0; i < 2 * half_; i += kLineFloats) __builtin_prefetch(Cos(index) + i, 0, 2);
  }

 private:
  const std::vector<float> theta_;
  const int64_t stride_;
  const int half_;
  std::vector<float> values_;  // [count][cos half, sin half]
};

}  // namespace folio
