#pragma once

#include <cstdint>
#include <span>

#include "engine/types/kv_types.h"

namespace folio {

// What attention has read of pages that leave memory.
struct SliceReads {
  int64_t hits = 0;  // slices that were needed and in memory
  int64_t misses = 0;
  int64_t hinted = 0;  // of them those whose reads had been started before
  int64_t bytes_in = 0;
  double seconds_waited = 0;
};

// Brings slices of pages into memory where not all of them are. Engine thread, while a step runs.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  // Slices that one Need may ask for, now.
  virtual int64_t wave_slices() const = 0;
  // Makes the slices readable (SliceMemory) until the next Need. One that is lost holds anything
  // finite: its owner is told after the step. `next` will be asked for next, most likely: its reads
  // are started before the others are waited for, so that the disk is never without any.
  virtual void Need(std::span<const SliceKey> slices, std::span<const SliceKey> next) = 0;
};

}  // namespace folio
