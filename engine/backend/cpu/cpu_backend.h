#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/isa.h"

namespace folio {

struct CpuBackendOptions {
  int num_threads = 1;
  // Empty: the best this CPU has.
  std::optional<Isa> isa;
};

// The CPU backend: always there, and the numerical reference.
// Errors: INVALID_ARGUMENT for a thread count outside 1..1024 or an instruction set the CPU lacks.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace folio
