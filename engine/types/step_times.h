#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace folio {

// How long steps took: a histogram.
struct StepTimes {
  // Upper ends in seconds; beyond the last one is one more.
  static constexpr std::array<double, 22> kEnds = {
      0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
      0.075,  0.1,   0.15,  0.2,   0.3,   0.5,    1,    2,     5,    10,   60};

  void Note(double seconds) {
    const auto* const end = std::lower_bound(kEnds.begin(), kEnds.end(), seconds);
    ++counts[static_cast<size_t>(end - kEnds.begin())];
    sum_seconds += seconds;
  }

  std::array<int64_t, kEnds.size() + 1> counts = {};
  double sum_seconds = 0;
};

}  // namespace folio
