#pragma once

#include <cstdint>
#include <random>

namespace folio {

// From the random device of the system, for ids and secrets. One device for each thread: to make
// one asks the processor what it is, which takes long under a hypervisor. Thread-safe.
inline uint64_t RandomBits() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace folio
