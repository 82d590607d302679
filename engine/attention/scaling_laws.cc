#include "engine/attention/scaling_laws.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace folio {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

}  // namespace

int CriticalDimension(int rotary_dim, double base, double trained_length) {
  const double pairs = rotary_dim / 2.0 * std::log(trained_length / kTwoPi) / std::log(base);
  return std::clamp(2 * static_cast<int>(std::ceil(pairs)), 0, rotary_dim);
}

double RequiredBase(double base, double trained_length, double length) {
  return std::pow(base, std::log(length / kTwoPi) / std::log(trained_length / kTwoPi));
}

double RequiredBaseOfCriticalDimension(int rotary_dim, double base, double trained_length,
                                       double length) {
  const int critical = CriticalDimension(rotary_dim, base, trained_length);
  return std::pow(length / kTwoPi, static_cast<double>(rotary_dim) / critical);
}

double MaxExtrapolationLength(int rotary_dim, double base, double trained_length, double new_base,
                              double tuned_length) {
  // Below the base that the tuned length asks for, the critical dimension follows the new base and
  // nothing beyond that length is promised.
  if (new_base < RequiredBase(base, trained_length, tuned_length)) return tuned_length;
  const int critical = CriticalDimension(rotary_dim, base, trained_length);
  const double reach = kTwoPi * std::pow(new_base, static_cast<double>(critical) / rotary_dim);
  return std::max(tuned_length, reach);
}

}  // namespace folio
