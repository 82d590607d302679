#include "server/memory_trim.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace folio::server {
namespace {

int64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long total = 0;
  long resident = 0;
  const int read = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return read == 2 ? int64_t{resident} * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

void MemoryTrim::Tick(bool idle) {
  if (!idle) return;
  const int64_t resident = ResidentBytes();
  if (least_resident_ >= 0 && resident < least_resident_ + kWorthIt) {
    least_resident_ = std::min(least_resident_, resident);
    return;
  }
  ::malloc_trim(0);
  least_resident_ = ResidentBytes();
}

}  // namespace folio::server
