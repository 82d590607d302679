#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/frame_pool.h"
#include "engine/kv/frames.h"

namespace folio {

// Pages that lie otherwise once they are complete (KvGeometry::sealed_bits). An open page has a
// frame of its own for what is written, beside its place among the sealed ones, which is empty
// until whoever completes the page fills it. Once the page is sealed its open frame is free. Engine
// thread only.
class SealingPages final : public Frames {
 public:
  // Borrows both: open frames, which others may take, too, and the at most max_pages sealed pages.
  SealingPages(FramePool* open, Frames* sealed, int64_t max_pages);

  FrameId Allocate() override;
  void AddRef(FrameId id, bool open) override;
  void Release(FrameId id, bool open) override;
  void Seal(FrameId id) override;
  bool IsShared(FrameId id) const override { return sealed_->IsShared(id); }
  void Copy(FrameId from, FrameId to) override;
  // As Seal, of a page that stays where it is: among the sealed ones it is still open.
  void Complete(FrameId id) { Close(id); }

  // [page]: the frame in which an open page is written. Stays where it is.
  const FrameId* open_frames() const { return open_frames_.data(); }

 private:
  void Close(FrameId id);

  FramePool* const open_;
  Frames* const sealed_;
  // Both have room for max_pages: to take and to free a page needs no other memory.
  std::vector<int32_t> open_refs_;
  std::vector<FrameId> open_frames_;
};

}  // namespace folio
