#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"

namespace folio {

// The backend of one NVIDIA GPU: cuBLAS for matrix products, kernels of this folder for the rest.
// Errors: FAILED_PRECONDITION without a driver or device, with what to do; INTERNAL.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int ordinal);

}  // namespace folio
