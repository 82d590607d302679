#include "engine/attention/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/attention/rope.h"

namespace folio {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// theta'_m = scale(m, theta_m) in double.
template <typename Scale>
Rotary Scaled(const RopeModel& model, double attention_factor, const Scale& scale) {
  Rotary rotary;
  rotary.theta.assign(model.head_dim / 2, 0.0f);
  for (int m = 0; m < model.rotary_dim / 2; ++m) {
    const double theta = std::pow(model.base, -2.0 * m / model.rotary_dim);
    rotary.theta[m] = static_cast<float>(scale(m, theta));
  }
  rotary.logit_factor = static_cast<float>(attention_factor * attention_factor);
  return rotary;
}

}  // namespace

Rotary LinearRotary(const RopeModel& model, double factor) {
  return Scaled(model, 1, [&](int, double theta) { return theta / factor; });
}

Rotary NtkRotary(const RopeModel& model, double factor) {
  const double d = model.rotary_dim;
  return BaseRotary(model, model.base * std::pow(factor, d / (d - 2)));
}

Rotary BaseRotary(const RopeModel& model, double base) {
  return {RopeTheta(model.head_dim, model.rotary_dim, base)};
}

Rotary YarnRotary(const RopeModel& model, const YarnParams& params) {
  const double d = model.rotary_dim;
  // Index of the pair that turns `rotations` times in the original length.
  const auto pair_of = [&](double rotations) {
    return d * std::log(params.original_length / (rotations * kTwoPi)) / (2 * std::log(model.base));
  };
  const double low = std::max(std::floor(pair_of(params.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(params.beta_slow)), d - 1);
  if (low == high) high += 0.001;
  return Scaled(model, params.attention_factor, [&](int m, double theta) {
    const double ramp = std::clamp((m - low) / (high - low), 0.0, 1.0);
    return theta * (1 - ramp) + theta / params.factor * ramp;
  });
}

double YarnAttentionFactor(double factor) { return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1; }

Rotary Llama3Rotary(const RopeModel& model, const Llama3Params& params) {
  const double length = params.original_length;
  return Scaled(model, 1, [&](int, double theta) {
    const double wavelength = kTwoPi / theta;
    if (wavelength < length / params.high_freq_factor) return theta;
    if (wavelength > length / params.low_freq_factor) return theta / params.factor;
    const double smooth = (length / wavelength - params.low_freq_factor) /
                          (params.high_freq_factor - params.low_freq_factor);
    return (1 - smooth) * theta / params.factor + smooth * theta;
  });
}

Rotary LongRopeRotary(const RopeModel& model, bool use_long, double attention_factor) {
  const std::vector<double>& factors = use_long ? model.long_factors : model.short_factors;
  return Scaled(model, attention_factor, [&](int m, double theta) { return theta / factors[m]; });
}

}  // namespace folio
