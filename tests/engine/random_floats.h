#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace folio::test {

// Normally distributed, the same for equal seeds.
inline std::vector<float> RandomFloats(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace folio::test
