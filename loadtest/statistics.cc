#include "loadtest/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace folio::loadtest {

double Percentile(const std::vector<double>& sorted, double percent) {
  const double rank = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = rank - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

Summary Summarize(std::vector<double> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  summary.count = samples.size();
  const double count = static_cast<double>(samples.size());
  summary.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : samples) squares += (sample - summary.mean) * (sample - summary.mean);
  summary.std = std::sqrt(squares / count);
  summary.p50 = summary.median = Percentile(samples, 50);
  summary.p90 = Percentile(samples, 90);
  summary.p95 = Percentile(samples, 95);
  summary.p99 = Percentile(samples, 99);
  summary.max = samples.back();
  return summary;
}

}  // namespace folio::loadtest
