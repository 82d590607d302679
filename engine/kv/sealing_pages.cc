#include "engine/kv/sealing_pages.h"

namespace folio {

SealingPages::SealingPages(FramePool* open, Frames* sealed, int64_t max_pages)
    : open_(open), sealed_(sealed) {
  open_refs_.reserve(max_pages);
  open_frames_.reserve(max_pages);
}

FrameId SealingPages::Allocate() {
  const FrameId open = open_->Allocate();
  if (open == kNoFrame) return kNoFrame;
  const FrameId id = sealed_->Allocate();
  if (id == kNoFrame) {
    open_->Release(open, true);
    return kNoFrame;
  }
  if (id >= static_cast<FrameId>(open_refs_.size())) {
    open_refs_.resize(id + 1);
    open_frames_.resize(id + 1, kNoFrame);
  }
  open_refs_[id] = 1;
  open_frames_[id] = open;
  return id;
}

void SealingPages::AddRef(FrameId id, bool open) {
  sealed_->AddRef(id, open);
  if (open) ++open_refs_[id];
}

void SealingPages::Release(FrameId id, bool open) {
  if (open) Close(id);
  sealed_->Release(id, open);
}

void SealingPages::Seal(FrameId id) {
  Close(id);
  sealed_->Seal(id);
}

void SealingPages::Copy(FrameId from, FrameId to) {
  open_->Copy(open_frames_[from], open_frames_[to]);
}

void SealingPages::Close(FrameId id) {
  if (--open_refs_[id] > 0) return;
  open_->Release(open_frames_[id], true);
  open_frames_[id] = kNoFrame;
}

}  // namespace folio
