#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace folio {

// What a backend also is whose device has a clock; for benchmarks.
class VerbTimer {
 public:
  // Time that the device spent on one verb, products by the shape of their matrix.
  struct VerbTime {
    std::string verb;
    int64_t calls = 0;
    double seconds = 0;
  };

  virtual ~VerbTimer() = default;

  // Runs `steps`, in which no step is repeated from a recording, and tells where the time on the
  // device went.
  virtual std::vector<VerbTime> TimeVerbs(absl::FunctionRef<void()> steps) = 0;
};

}  // namespace folio
