#include "engine/kv/hosted_pages.h"

namespace folio {

HostedPages::HostedPages(FramePool* frames, HostTier* tier, int64_t max_pages)
    : frames_(frames), tier_(tier), max_pages_(max_pages) {
  pages_.reserve(max_pages);
  places_.reserve(max_pages);
  free_.reserve(max_pages);
}

FrameId HostedPages::TakePage() {
  FrameId id = static_cast<FrameId>(pages_.size());
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (id < max_pages_) {
    pages_.emplace_back();
    places_.emplace_back();
  } else {
    return kNoFrame;
  }
  return id;
}

FrameId HostedPages::Allocate() {
  const FrameId id = TakePage();
  if (id == kNoFrame) return kNoFrame;
  places_[id] = frames_->Allocate();
  if (places_[id] == kNoFrame) {
    free_.push_back(id);
    return kNoFrame;
  }
  pages_[id] = {.refs = 1, .open_refs = 1};
  return id;
}

FrameId HostedPages::AllocateAtHome() {
  const FrameId id = TakePage();
  if (id == kNoFrame) return kNoFrame;
  tier_->Forget(id);
  pages_[id] = {.refs = 1, .sealed = true};
  places_[id] = ~id;
  ++home_pages_;
  return id;
}

void HostedPages::AddRef(FrameId id, bool open) {
  ++pages_[id].refs;
  pages_[id].open_refs += open;
}

void HostedPages::Release(FrameId id, bool open) {
  Page& page = pages_[id];
  page.open_refs -= open;
  if (--page.refs > 0) return MaybeMoveHome(id);
  if (places_[id] < 0) {
    --home_pages_;
  } else {
    frames_->Release(places_[id], true);
  }
  free_.push_back(id);
}

void HostedPages::Seal(FrameId id) {
  --pages_[id].open_refs;
  pages_[id].sealed = true;
  MaybeMoveHome(id);
}

// The frame may be written again at once: by verbs that follow the copy.
void HostedPages::MaybeMoveHome(FrameId id) {
  if (!pages_[id].sealed || pages_[id].open_refs > 0 || places_[id] < 0) return;
  tier_->WriteHome(id, frames_->memory().Frame(places_[id]));
  frames_->Release(places_[id], true);
  places_[id] = ~id;
  ++home_pages_;
}

void HostedPages::Copy(FrameId from, FrameId to) { frames_->Copy(places_[from], places_[to]); }

}  // namespace folio
