#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/frame_pool.h"
#include "engine/kv/frames.h"
#include "engine/types/host_tier.h"

namespace folio {

// Pages of a device that has the host's memory below it. A page is open at first, in a frame of the
// device. Once nobody writes it any more it is copied home, its frame is free for another one, and
// attention reads its slices from home. Engine thread only.
class HostedPages final : public Frames {
 public:
  // Borrows the frames, which others may take, too, and the tier, which has room for max_pages.
  HostedPages(FramePool* frames, HostTier* tier, int64_t max_pages);

  FrameId Allocate() override;
  // A page with one reference that is at home, to be filled there; kNoFrame if there is none.
  FrameId AllocateAtHome();
  void AddRef(FrameId id, bool open) override;
  void Release(FrameId id, bool open) override;
  void Seal(FrameId id) override;
  bool IsShared(FrameId id) const override { return pages_[id].refs > 1; }
  void Copy(FrameId from, FrameId to) override;

  // [page]: the frame in which it lies, or ~page where it is at home. Stays where it is.
  const FrameId* places() const { return places_.data(); }
  int64_t home_pages() const { return home_pages_; }

 private:
  struct Page {
    int32_t refs = 0;
    int32_t open_refs = 0;
    bool sealed = false;
  };

  FrameId TakePage();
  void MaybeMoveHome(FrameId id);

  FramePool* const frames_;
  HostTier* const tier_;
  const int64_t max_pages_;
  int64_t home_pages_ = 0;
  // All have room for max_pages: to take and to free a page needs no other memory.
  std::vector<Page> pages_;
  std::vector<FrameId> places_;
  std::vector<FrameId> free_;
};

}  // namespace folio
