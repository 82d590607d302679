#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/memory.h"
#include "engine/kv/frames.h"
#include "engine/types/kv_types.h"

namespace folio {

// Fixed-size frames in one range of memory, with reference counts for sharing. On the host it is
// committed by the first touch, so an unused pool costs address space only, and frames freed beyond
// a small reserve are handed back to the system. Engine thread only.
class FramePool final : public Frames {
 public:
  // What a frame of so many bytes takes: whole system pages, so that it can be handed back.
  static int64_t RoundedBytes(int64_t frame_bytes);

  // Reserves room for `max_frames` of RoundedBytes. Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<FramePool>> Create(Memory* memory, int64_t frame_bytes,
                                                           int64_t max_frames);
  ~FramePool() override;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // A zeroed or reused frame with one reference, kNoFrame if the pool is full.
  FrameId Allocate() override;
  void AddRef(FrameId id, bool open) override;
  void Release(FrameId id, bool open) override;
  void Seal(FrameId) override {}
  void Copy(FrameId from, FrameId to) override;
  bool IsShared(FrameId id) const override { return refs_[id] > 1; }
  FrameMemory memory() const { return {base_, frame_bytes_}; }
  int64_t frame_bytes() const { return frame_bytes_; }
  int64_t used_frames() const { return used_frames_; }
  int64_t used_bytes() const { return used_frames_ * frame_bytes_; }

 private:
  FramePool(Memory* memory, std::byte* base, int64_t frame_bytes, int64_t max_frames)
      : pool_memory_(memory), base_(base), frame_bytes_(frame_bytes), max_frames_(max_frames) {}

  Memory* const pool_memory_;
  std::byte* const base_;
  const int64_t frame_bytes_;
  const int64_t max_frames_;
  int64_t used_frames_ = 0;
  // Each has room for max_frames: to take and to free a frame needs no other memory.
  std::vector<int32_t> refs_;      // per frame ever used
  std::vector<FrameId> resident_;  // free, memory still committed
  std::vector<FrameId> returned_;  // free, memory handed back
};

}  // namespace folio
