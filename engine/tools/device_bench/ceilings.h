#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"

namespace folio {

// What the device can do at best, so that a speed can be shown as a share of it. Measured when it
// is first asked for.
class Ceilings {
 public:
  // Sizes are divided by `scale`.
  Ceilings(Backend* backend, int64_t scale) : backend_(backend), scale_(scale) {}

  // Bytes read and written per second by copies of 1 GiB in device memory.
  absl::StatusOr<double> CopyBytesPerSecond();

  // Of the engine's own product of 16384 x 16384 weights with 8192 rows, in which the conversion
  // of the activations is 3 % of the traffic.
  absl::StatusOr<double> FlopsPerSecond();

 private:
  Backend* const backend_;
  const int64_t scale_;
  std::optional<double> copy_;
  std::optional<double> flops_;
};

}  // namespace folio
