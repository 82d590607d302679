#pragma once

#include "absl/status/statusor.h"
#include "engine/backend/cuda/device.h"

namespace folio::cuda {

// From the environment, each variable 0 or 1:
//   FOLIO_CUDA_GRAPHS=0   no step is recorded as a graph
//   FOLIO_CUDA_PDL=0      no launch overlaps the kernel before it
//   FOLIO_CUDA_SYNC=1     every launch is waited for, so that a failure names its verb and kernel;
//                         no graphs then, which cannot be waited for while they are recorded
// Errors: INVALID_ARGUMENT for any other value.
absl::StatusOr<Switches> SwitchesOfEnvironment();

}  // namespace folio::cuda
