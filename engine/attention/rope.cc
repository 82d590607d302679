#include "engine/attention/rope.h"

#include <algorithm>
#include <cmath>

namespace folio {

std::vector<float> RopeTheta(int head_dim, int rotary_dim, double base) {
  std::vector<float> theta(head_dim / 2, 0.0f);
  for (int m = 0; m < rotary_dim / 2; ++m) {
    theta[m] = static_cast<float>(std::pow(base, -2.0 * m / rotary_dim));
  }
  return theta;
}

void FillRotation(const std::vector<float>& theta, int64_t position, float* cos, float* sin) {
  for (size_t m = 0; m < theta.size(); ++m) {
    const double angle = static_cast<double>(position) * static_cast<double>(theta[m]);
    cos[m] = static_cast<float>(std::cos(angle));
    sin[m] = static_cast<float>(std::sin(angle));
  }
}

Rotary DynamicRotary(const DynamicBase& dynamic, int head_dim, int64_t num_tokens) {
  const double length = static_cast<double>(std::max<int64_t>(num_tokens, dynamic.trained_length));
  const double alpha = dynamic.factor * length / dynamic.trained_length - (dynamic.factor - 1);
  const double d = dynamic.rotary_dim;
  return {RopeTheta(head_dim, dynamic.rotary_dim, dynamic.base * std::pow(alpha, d / (d - 2)))};
}

}  // namespace folio
