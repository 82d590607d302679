#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace folio {

// RESOURCE_EXHAUSTED: the host has no memory left. Made before main, so that to have it needs none.
const absl::Status& OutOfMemory();

// Runs `work`; what it throws becomes a status: OutOfMemory for std::bad_alloc, INTERNAL with its
// text for any other exception. Needs no memory of its own. For the few places that know whose work
// fails: a request, a command, a stream.
absl::Status CatchErrors(absl::FunctionRef<void()> work) noexcept;

// The status of `work`, or of what it throws.
absl::Status StatusOf(absl::FunctionRef<absl::Status()> work) noexcept;

}  // namespace folio
