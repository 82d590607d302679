#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/kv/page_home.h"
#include "engine/kv/slot_cache.h"
#include "engine/kv/tiered_pages.h"
#include "engine/types/slice_source.h"

namespace folio {

// Brings slices of pages from their home into slots, those of the next wave while the present one
// is worked on. Engine thread only.
class TierMover final : public SliceSource {
 public:
  // Borrows all three.
  TierMover(SlotCache* slots, TieredPages* pages, PageHome* home, int kv_heads)
      : slots_(slots), pages_(pages), home_(home), kv_heads_(kv_heads) {}
  ~TierMover() override;

  int64_t wave_slices() const override;
  void Need(std::span<const SliceKey> slices, std::span<const SliceKey> next) override;
  // The step is finished: nothing that it needed is needed any more.
  void EndStep();

  const SliceReads& counts() const { return counts_; }
  // Of one sequence in the step that has ended last; it has waited as long as the whole step.
  SliceReads CountsOf(int reader) const;

 private:
  // Reads that are under way; their slots are pinned.
  struct Batch {
    std::vector<int64_t> slices;
    std::vector<FrameId> frames;
    std::unique_ptr<PendingReads> reads;
  };
  int64_t NumberOf(const SliceKey& key) const {
    return pages_->SliceNumber(key.frame, key.layer * kv_heads_ + key.kv_head);
  }
  // Starts to read those that are in no slot. Without `all`, as far as there are slots.
  Batch Start(std::span<const SliceKey> slices, bool all);
  // What was read is there, or is lost.
  void Finish(Batch* batch);
  void Lose(const Batch& batch, size_t n);
  // The reads do not end: nobody waits for them any more.
  void GiveUp(Batch* batch);
  // After Finish: the slots are pinned until the next Need.
  void KeepPinned(Batch* batch);
  void Unpin();
  SliceReads& Reader(int reader);

  SlotCache* const slots_;
  TieredPages* const pages_;
  PageHome* const home_;
  const int kv_heads_;
  std::vector<int64_t> pinned_;  // by the last Need
  // That it waits for: what the one before had started, and what was missing still. And what it has
  // started for the next one.
  Batch arriving_;
  Batch missing_;
  Batch next_;
  // Given up on; their slots stay pinned and their pages referenced until they end, for they are
  // still written to.
  std::vector<Batch> late_;
  SliceReads counts_;
  // By reader: of the step that runs, and of the last one.
  std::vector<SliceReads> readers_;
  std::vector<SliceReads> last_readers_;
  double step_seconds_waited_ = 0;
  double last_seconds_waited_ = 0;
};

}  // namespace folio
