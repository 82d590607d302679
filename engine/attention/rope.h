#pragma once

#include <cstdint>
#include <vector>

namespace folio {

// Rotary frequencies theta_m = base^(-2m/dim), m = 0..dim/2-1 (Su et al. 2021), rounded to fp32 as
// checkpoints were trained with; angles are formed in double, so any int64 position is exact.
class RopeFrequencies {
 public:
  RopeFrequencies(int dim, double base);

  int dim() const { return 2 * static_cast<int>(theta_.size()); }
  // cos and sin of position * theta_m, dim/2 values each. `position` may be negative.
  void Fill(int64_t position, float* cos, float* sin) const;

 private:
  std::vector<float> theta_;
};

}  // namespace folio
