#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/tensor/tensor_view.h"

namespace folio {

// The xoshiro256** generator. Source: Blackman and Vigna, "Scrambled linear pseudorandom number
// generators" (2021), seeded by splitmix64.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed);
  uint64_t Next();

 private:
  std::array<uint64_t, 4> state_;
};

// Normal random numbers in a weight dtype by table: each is one of 65536 quantiles of the normal
// distribution with the given standard deviation, picked by 16 random bits. One thread.
class NormalTable {
 public:
  NormalTable(DType dtype, double standard_deviation);

  // Fills `num_elements` elements at `out`, which is aligned for the dtype.
  void Fill(RandomBits* random, size_t num_elements, char* out) const;

 private:
  template <typename T>
  void FillAs(RandomBits* random, size_t num_elements, char* out) const;

  DType dtype_;
  std::vector<char> table_;
};

// `value` in `dtype` (fp32, fp16, bf16), as raw bytes, rounded to nearest even.
std::string EncodeElement(float value, DType dtype);

}  // namespace folio
