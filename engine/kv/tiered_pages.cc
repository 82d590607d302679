#include "engine/kv/tiered_pages.h"

#include <cstring>
#include <utility>

#include "engine/base/catch_errors.h"

namespace folio {

TieredPages::TieredPages(SlotCache* slots, PageHome* home, int slices_per_frame, int64_t max_frames)
    : slots_(slots), home_(home), slices_per_frame_(slices_per_frame), max_frames_(max_frames) {
  // To take and to free a frame needs no other memory.
  frames_.reserve(max_frames);
  free_.reserve(max_frames);
  unwritten_.reserve(max_frames);
}

TieredPages::~TieredPages() {
  while (writing_ > 0) NoteWritten(true);
}

FrameId TieredPages::TakeFrame() {
  if (free_.empty() && static_cast<int64_t>(frames_.size()) == max_frames_) {
    // Some may be free once they are written.
    while (free_.empty() && NoteWritten(true)) {
    }
    if (free_.empty()) return kNoFrame;
  }
  FrameId id = static_cast<FrameId>(frames_.size());
  if (free_.empty()) {
    frames_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  return id;
}

FrameId TieredPages::AllocateAtHome() {
  const FrameId id = TakeFrame();
  if (id == kNoFrame) return kNoFrame;
  frames_[id] = {.refs = 1, .state = State::kHome};
  ++used_frames_;
  ++home_frames_;
  return id;
}

FrameId TieredPages::Allocate() {
  const FrameId id = TakeFrame();
  if (id == kNoFrame) return kNoFrame;
  if (!TakeSlots(id)) {
    free_.push_back(id);
    return kNoFrame;
  }
  frames_[id] = {.refs = 1, .open_refs = 1, .state = State::kOpen, .run = run_};
  ++used_frames_;
  return id;
}

bool TieredPages::TakeSlots(FrameId id) {
  bool tried = false;
  for (int slice = 0; slice < slices_per_frame_;) {
    if (slots_->Take(SliceNumber(id, slice))) {
      ++slice;
    } else if (!AwaitSlot(&tried)) {
      while (slice-- > 0) slots_->Forget(SliceNumber(id, slice));
      return false;
    }
  }
  return true;
}

bool TieredPages::AwaitSlot(bool* tried) {
  return NoteWritten(true) || (!std::exchange(*tried, true) && RetryWrites());
}

void TieredPages::AddRef(FrameId id, bool open) {
  ++frames_[id].refs;
  frames_[id].open_refs += open;
}

void TieredPages::Release(FrameId id, bool open) {
  Frame& frame = frames_[id];
  frame.open_refs -= open;
  if (--frame.refs > 0) return MaybeWrite(id);
  // While it is written its slots stay.
  if (frame.state != State::kWriting) Free(id);
}

void TieredPages::Free(FrameId id) {
  Frame& frame = frames_[id];
  for (int slice = 0; slice < slices_per_frame_; ++slice) slots_->Forget(SliceNumber(id, slice));
  home_frames_ -= frame.state == State::kHome;
  if (frame.state == State::kUnwritten) std::erase(unwritten_, id);
  if (frame.state == State::kHome || frame.state == State::kUnwritten) home_->Free(id);
  num_lost_ -= frame.lost;
  frame = {};
  --used_frames_;
  free_.push_back(id);
}

void TieredPages::Seal(FrameId id) {
  Frame& frame = frames_[id];
  --frame.open_refs;
  if (frame.state == State::kOpen) {
    frame.state = State::kSealed;
    frame.run = run_;
  }
  MaybeWrite(id);
}

void TieredPages::MaybeWrite(FrameId id) {
  if (frames_[id].state != State::kSealed || frames_[id].open_refs > 0) return;
  const absl::Status started = CatchErrors([&] { StartWrite(id); });
  if (started.ok()) return;
  home_error_ = started;
  frames_[id].state = State::kUnwritten;
  unwritten_.push_back(id);
}

void TieredPages::StartWrite(FrameId id) {
  written_.reserve(static_cast<size_t>(writing_) + 1);
  std::vector<const std::byte*> slices(slices_per_frame_);
  for (int slice = 0; slice < slices_per_frame_; ++slice) {
    slices[slice] = slots_->At(SliceNumber(id, slice));
  }
  home_->StartWrite(id, frames_[id].run, std::move(slices));
  frames_[id].state = State::kWriting;
  ++writing_;
}

bool TieredPages::NoteWritten(bool wait) {
  if (writing_ == 0) return false;
  home_->TakeWritten(wait, &written_);
  if (wait && written_.empty()) {
    home_error_ = absl::UnavailableError("the disk takes no page, writing does not end");
    return false;
  }
  for (const PageHome::Written& written : written_) {
    --writing_;
    Frame& frame = frames_[written.frame];
    if (written.status.ok()) {
      frame.state = State::kHome;
      ++home_frames_;
      for (int slice = 0; slice < slices_per_frame_; ++slice) {
        slots_->Unpin(SliceNumber(written.frame, slice));
      }
      if (unwritten_.empty()) home_error_ = absl::OkStatus();
    } else {
      frame.state = State::kUnwritten;
      home_error_ = written.status;
      unwritten_.push_back(written.frame);
    }
    if (frame.refs == 0) Free(written.frame);
  }
  return true;
}

bool TieredPages::RetryWrites() {
  if (unwritten_.empty()) return false;
  for (; !unwritten_.empty(); unwritten_.pop_back()) {
    if (!CatchErrors([&] { StartWrite(unwritten_.back()); }).ok()) break;
  }
  return writing_ > 0;
}

void TieredPages::Copy(FrameId from, FrameId to) {
  for (int slice = 0; slice < slices_per_frame_; ++slice) {
    std::memcpy(slots_->At(SliceNumber(to, slice)), slots_->At(SliceNumber(from, slice)),
                static_cast<size_t>(slots_->slot_bytes()));
  }
}

void TieredPages::MarkLost(FrameId id) {
  num_lost_ += !frames_[id].lost;
  frames_[id].lost = true;
}

}  // namespace folio
