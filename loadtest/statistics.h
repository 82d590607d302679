// Numbers about samples. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

namespace folio::loadtest {

struct Summary {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  // Of the samples themselves (divided by count), as numpy.std.
  double std = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Linear interpolation between the closest ranks, as numpy.percentile.
// REQUIRES: `sorted` is sorted and not empty, 0 <= percent <= 100.
double Percentile(const std::vector<double>& sorted, double percent);

// All zero without samples: look at count first.
Summary Summarize(std::vector<double> samples);

}  // namespace folio::loadtest
