#pragma once

#include <tuple>
#include <vector>

namespace folio {

// What a position scheme does to attention, as numbers: pair m of a query or key at position p is
// turned by p * theta[m], and every logit is multiplied by logit_factor.
struct Rotary {
  // [head_dim / 2] radians per token; 0: the pair is not rotated (partial rotary, ALiBi).
  std::vector<float> theta;
  float logit_factor = 1.0f;

  bool operator==(const Rotary&) const = default;
  bool operator<(const Rotary& other) const {
    return std::tie(theta, logit_factor) < std::tie(other.theta, other.logit_factor);
  }
};

}  // namespace folio
