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
// committed by the first touch, so an unused pool costs address space only. What frames freed
// beyond a small reserve took is handed back to the system in whole blocks of
// Memory::discard_bytes: a block stays committed while a frame in use, or of the reserve, lies in
// some of it. Engine thread only.
class FramePool final : public Frames {
 public:
  // What a frame of so many bytes takes: whole system pages.
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
  FramePool(Memory* memory, std::byte* base, int64_t frame_bytes, int64_t max_frames);

  int64_t num_bytes() const { return frame_bytes_ * max_frames_; }
  // The frame is used again, or its memory may be handed back.
  void HoldBlocks(FrameId id);
  void ReleaseBlocks(FrameId id);

  Memory* const pool_memory_;
  std::byte* const base_;
  const int64_t frame_bytes_;
  const int64_t max_frames_;
  const int64_t block_bytes_;
  int64_t used_frames_ = 0;
  // Each has room for max_frames: to take and to free a frame needs no other memory.
  std::vector<int32_t> refs_;      // per frame ever used
  std::vector<FrameId> resident_;  // free, of the reserve
  std::vector<FrameId> returned_;  // free otherwise
  // Per block: frames in use or of the reserve that lie in it.
  std::vector<int32_t> holders_;
};

}  // namespace folio
