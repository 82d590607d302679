#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cuda/rope_cache.h"

namespace folio::cuda {

// Which rotations the rows of a slice may need, and where they lie.
class SliceRopes {
 public:
  SliceRopes(CudaMemory* memory, const AttentionSetup& setup)
      : setup_(setup), cache_(memory, setup.geometry.page_tokens) {}

  void BeginStep() { cache_.BeginStep(); }

  // Tables for its queries, and for the summaries of chunks that they choose by.
  struct Ropes {
    const DeviceRope* queries = nullptr;
    const DeviceRope* summaries = nullptr;
  };
  // Made or grown where needed. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<Ropes> Get(const SequenceSlice& slice);

 private:
  const AttentionSetup& setup_;
  RopeCache cache_;
  Rotary dynamic_;
};

}  // namespace folio::cuda
