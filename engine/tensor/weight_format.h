#pragma once

#include <cstdint>

namespace folio {

// How a backend keeps the numbers of a weight matrix.
struct WeightFormat {
  enum class Codec : uint8_t {
    kAsGiven,  // in the dtype they come in
    kInt8,     // integers with one scale per output and group of inputs
    kInt4,
  };
  Codec codec = Codec::kAsGiven;
  // Inputs that share a scale, 32, 64 or 128; of integers only.
  int group = 0;
};

}  // namespace folio
