#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/functional/function_ref.h"

namespace folio {

inline double NowSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The median of ten calls, after two that do not count.
inline double MedianSeconds(absl::FunctionRef<void()> work) {
  constexpr int kWarmUp = 2;
  constexpr int kCalls = 10;
  std::vector<double> seconds;
  for (int n = 0; n < kWarmUp + kCalls; ++n) {
    const double start = NowSeconds();
    work();
    if (n >= kWarmUp) seconds.push_back(NowSeconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace folio
