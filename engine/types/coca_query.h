#pragma once

#include <cstdint>

namespace folio {

// How the query of a CoCA model enters (docs/methods.md, section 11.3): as it is (slack), or with
// both members a, b of a rotated pair replaced by sqrt((a^2 + b^2) / 2) or by (a + b) / 2 (strict).
// Plain, so that .cu files can include it.
enum class CocaQuery : uint8_t { kNone, kRaw, kNorm, kMean };

}  // namespace folio
