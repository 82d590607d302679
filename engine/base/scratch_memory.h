#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/memory.h"

namespace folio {

// Memory of the host that is written anew before each use: it grows to the largest that was asked
// for. On large pages, and aligned to cache lines, across which a load of 64 bytes takes twice as
// long.
class ScratchMemory {
 public:
  // Room for `count` values; what they are is of no meaning. What was given before is not valid any
  // more. Throws std::bad_alloc.
  template <typename T>
  T* Get(int64_t count) {
    return reinterpret_cast<T*>(Grown(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  std::byte* Grown(int64_t num_bytes);

  Buffer buffer_;
};

}  // namespace folio
