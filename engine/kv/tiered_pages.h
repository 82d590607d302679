#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/frames.h"
#include "engine/kv/page_home.h"
#include "engine/kv/slot_cache.h"

namespace folio {

// Pages of which only some slices are in memory. A page is open at first: all of its slices are
// there. Once nobody writes it any more it is copied home, and then its slices come and go. Engine
// thread only.
class TieredPages final : public Frames {
 public:
  // Borrows the slots and the home. `max_frames` frames of so many slices.
  TieredPages(SlotCache* slots, PageHome* home, int slices_per_frame, int64_t max_frames);
  ~TieredPages() override;

  FrameId Allocate() override;
  // A frame with one reference that is at home already, and nowhere else; kNoFrame if there is
  // none.
  FrameId AllocateAtHome();
  void AddRef(FrameId id, bool open) override;
  void Release(FrameId id, bool open) override;
  void Seal(FrameId id) override;
  bool IsShared(FrameId id) const override { return frames_[id].refs > 1; }
  void Copy(FrameId from, FrameId to) override;

  // Sealed pages go to the home as part of this run of pages from now on.
  void SetRun(uint64_t run) { run_ = run; }

  // Notes which pages have come home. With `wait` at least one of those on their way; false if
  // there is none, or none gets there: home_error says so then.
  bool NoteWritten(bool wait);

  // For whoever finds all slots pinned: waits until pages have come home, or, once, tries again
  // what the home did not take. False if no slot will be free for that. `tried` is false at first.
  bool AwaitSlot(bool* tried);

  // The page cannot be read any more: a slice of it is lost.
  void MarkLost(FrameId id);
  bool IsLost(FrameId id) const { return frames_[id].lost; }
  int64_t num_lost() const { return num_lost_; }
  // Written to the home, or taken from it. Else the home has nothing, or not all of it.
  bool IsHome(FrameId id) const { return frames_[id].state == State::kHome; }
  // Complete, and in memory alone: the home has not taken it, or not been asked to.
  bool IsOnlyInMemory(FrameId id) const {
    return frames_[id].state == State::kSealed || frames_[id].state == State::kUnwritten;
  }

  int64_t SliceNumber(FrameId id, int slice) const {
    return int64_t{id} * slices_per_frame_ + slice;
  }
  int64_t used_frames() const { return used_frames_; }
  // Slots of pages that are not home yet: they cannot leave memory.
  int64_t slots_away_from_home() const { return (used_frames_ - home_frames_) * slices_per_frame_; }
  // Whose bytes are home.
  int64_t home_frames() const { return home_frames_; }
  // The last error of the home, while pages stay in memory for it.
  const absl::Status& home_error() const { return home_error_; }

 private:
  enum class State : uint8_t { kFree, kOpen, kSealed, kWriting, kUnwritten, kHome };
  struct Frame {
    int32_t refs = 0;
    int32_t open_refs = 0;
    State state = State::kFree;
    bool lost = false;
    uint64_t run = 0;
  };

  void MaybeWrite(FrameId id);
  void StartWrite(FrameId id);
  FrameId TakeFrame();
  bool TakeSlots(FrameId id);
  void Free(FrameId id);
  // Tries again what the home did not take.
  bool RetryWrites();

  SlotCache* const slots_;
  PageHome* const home_;
  const int slices_per_frame_;
  const int64_t max_frames_;
  uint64_t run_ = 0;
  int64_t used_frames_ = 0;
  int64_t home_frames_ = 0;
  int64_t writing_ = 0;
  int64_t num_lost_ = 0;
  absl::Status home_error_;
  std::vector<PageHome::Written> written_;  // has room for all that are being written
  std::vector<Frame> frames_;               // per frame ever used
  std::vector<FrameId> free_;
  std::vector<FrameId> unwritten_;  // refused by the home
};

}  // namespace folio
