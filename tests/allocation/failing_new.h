// The global operator new of this program fails when a test says so.
#pragma once

#include <cstdint>

namespace folio::test {

// From now on the allocations of all threads of this name are counted; the `first` one fails, and
// those after it up to `count`.
void FailAllocations(const char* thread, int64_t first, int64_t count);
// None fails any more. How many were counted.
int64_t StopFailing();

}  // namespace folio::test
