#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/types/kv_types.h"
#include "engine/types/slice_source.h"

namespace folio {

// Memory of the host below that of a device: pages that are complete lie there whole, and the
// device keeps slices of them in a cache of its own. What it does not find there it brings or,
// where the cache is too small for one layer of one step, reads where it lies: so any text can be
// read, whatever the cache holds. Everything is in the order of the backend's verbs, and nothing
// here waits for the device. Engine thread only.
class HostTier {
 public:
  struct Layout {
    int64_t max_pages = 0;
    int64_t page_bytes = 0;  // of a page at home, as of its frame on the device
    // Slices of a page lie one after the other.
    int64_t slice_bytes = 0;
    int slices_per_page = 0;
    int slices_per_layer = 0;  // of a page
    int64_t cache_bytes = 0;   // of the device
    int max_readers = 0;       // sequences of a step
  };

  virtual ~HostTier() = default;

  // Takes the memory, once and before anything else. Errors: RESOURCE_EXHAUSTED.
  virtual absl::Status Setup(const Layout& layout) = 0;
  // Copies a page home from its frame, after all verbs before this and before all that follow. What
  // the cache has of an earlier page of this number is forgotten.
  virtual void WriteHome(FrameId page, const std::byte* frame) = 0;
  // Where a page lies at home. The host finds there what was written home before the device last
  // had nothing to do; what it writes there itself verbs may read that follow, if what the cache
  // has of an earlier page was forgotten.
  virtual std::byte* Page(FrameId page) = 0;
  virtual void Forget(FrameId page) = 0;
  // Of the steps that are finished: slices that were in the cache, and those that were not, each
  // once per step, with the bytes of the latter. Nobody waits.
  virtual SliceReads counts() const = 0;
  // Of one sequence in the step that was finished last; a slice that several have read counts for
  // one of them.
  virtual SliceReads CountsOf(int reader) const = 0;
};

}  // namespace folio
