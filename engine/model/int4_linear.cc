#include "engine/model/int4_linear.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace folio {
namespace {

// Outputs that are gone through together: neighbours share words, and each a line of the cache.
constexpr int64_t kTile = 64;

// Where AWQ keeps output i of eight.
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

int PlaceOf(Int4Linear::Order order, int64_t output) {
  const auto i = static_cast<int>(output % 8);
  return order == Int4Linear::Order::kAwq ? kAwqPlace[i] : i;
}

int Nibble(uint32_t word, int place) { return static_cast<int>(word >> 4 * place & 15); }

int Integer(const Int4Linear& linear, int64_t output, int64_t input) {
  if (linear.order == Int4Linear::Order::kGptq) {
    return Nibble(linear.integers[input / 8 * linear.outputs + output],
                  static_cast<int>(input % 8));
  }
  return Nibble(linear.integers[input * (linear.outputs / 8) + output / 8],
                PlaceOf(linear.order, output));
}

int Zero(const Int4Linear& linear, int64_t output, int64_t group) {
  const uint32_t word = linear.zeros[group * (linear.outputs / 8) + output / 8];
  const int zero = Nibble(word, PlaceOf(linear.order, output));
  return linear.zeros_below ? (zero + 1) & 15 : zero;
}

}  // namespace

void Dequantise(const Int4Linear& linear, float* out) {
  const auto groups = static_cast<int64_t>(linear.scales.size()) / linear.outputs;
  std::vector<float> zeros(groups * kTile);
  for (int64_t first = 0; first < linear.outputs; first += kTile) {
    const int64_t count = std::min(kTile, linear.outputs - first);
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t i = 0; i < count; ++i) {
        zeros[group * kTile + i] = static_cast<float>(Zero(linear, first + i, group));
      }
    }
    for (int64_t input = 0; input < linear.inputs; ++input) {
      const int64_t group = linear.group[input];
      for (int64_t i = 0; i < count; ++i) {
        const auto integer = static_cast<float>(Integer(linear, first + i, input));
        out[(first + i) * linear.inputs + input] =
            linear.scales[group * linear.outputs + first + i] *
            (integer - zeros[group * kTile + i]);
      }
    }
  }
}

bool AreEights(std::span<const uint32_t> zeros, bool zeros_below) {
  const uint32_t eights = zeros_below ? 0x77777777u : 0x88888888u;
  return std::all_of(zeros.begin(), zeros.end(), [=](uint32_t word) { return word == eights; });
}

}  // namespace folio
