#include "engine/backend/cpu/rotation_table.h"

#include <algorithm>

namespace folio {

void RotationTable::Grow(int64_t count) {
  const int64_t old_count = static_cast<int64_t>(values_.size()) / (2 * half_);
  if (count <= old_count) return;
  // Doubling, so that a growing document does not copy the table every step.
  const int64_t new_count = std::max(count, 2 * old_count);
  values_.resize(new_count * 2 * half_);
  for (int64_t i = old_count; i < new_count; ++i) {
    float* at = &values_[i * 2 * half_];
    FillRotation(theta_, i * stride_, at, at + half_);
  }
}

}  // namespace folio
