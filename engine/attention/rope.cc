#include "engine/attention/rope.h"

#include <cmath>

namespace folio {

RopeFrequencies::RopeFrequencies(int dim, double base) : theta_(dim / 2) {
  for (int m = 0; m < dim / 2; ++m) {
    theta_[m] = static_cast<float>(std::pow(base, -2.0 * m / dim));
  }
}

void RopeFrequencies::Fill(int64_t position, float* cos, float* sin) const {
  for (size_t m = 0; m < theta_.size(); ++m) {
    const double angle = static_cast<double>(position) * static_cast<double>(theta_[m]);
    cos[m] = static_cast<float>(std::cos(angle));
    sin[m] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace folio
