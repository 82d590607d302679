#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/memory.h"
#include "engine/types/kv_types.h"

namespace folio {

// Which slice is in which slot of a range of memory, and which one leaves it: the one that was used
// least often, of those the one that came into the order first. Uses are counted while a slice is
// away, too, and halved from time to time. What is only read by passes over everything leaves last
// in, first out: the part of the rest that fits stays for the next pass (Chou and DeWitt 1985).
// Slices are numbered frame * slices_per_frame + slice. Engine thread only.
class SlotCache {
 public:
  // Room for max_slots of slot_bytes, of which SetLimit says how many are used. Errors:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SlotCache>> Create(Memory* memory, int64_t slot_bytes,
                                                           int64_t max_slots, int64_t num_slices);
  ~SlotCache();
  SlotCache(const SlotCache&) = delete;
  SlotCache& operator=(const SlotCache&) = delete;

  bool Contains(int64_t slice) const { return table_[slice] != kNoSlot; }
  std::byte* At(int64_t slice) const { return base_ + table_[slice] * slot_bytes_; }

  // A slot for a slice that has none, pinned once; what lies in it is of no meaning. False if all
  // slots are pinned.
  bool Take(int64_t slice);
  // The slice leaves memory and its uses are forgotten. REQUIRES: pinned by nobody else than the
  // caller, once or not at all.
  void Forget(int64_t slice);
  // What is pinned stays. REQUIRES: it has a slot.
  void Pin(int64_t slice);
  void Unpin(int64_t slice);
  // To be called for each use of a slice, once it has a slot.
  void CountUse(int64_t slice);
  // Instead, where a pass over everything reads it. REQUIRES: pinned.
  void NoteScan(int64_t slice);

  // At most so many slots hold slices from now on, as far as pinned ones allow; memory of the
  // others goes back to the system.
  void SetLimit(int64_t slots);

  int64_t limit() const { return limit_; }
  int64_t used_slots() const { return used_; }
  int64_t pinned_slots() const { return pinned_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t evictions() const { return evictions_; }
  std::byte* base() const { return base_; }
  const int32_t* table() const { return table_; }

 private:
  static constexpr int kMaxUses = 255;
  static constexpr int32_t kEnd = -1;

  struct Slot {
    int64_t slice = -1;
    int32_t pins = 0;
    bool scanned = false;  // last, and not used otherwise since
    // Of the list of unpinned slots whose slices were used as often.
    int32_t previous = kEnd;
    int32_t next = kEnd;
  };
  struct List {
    int32_t first = kEnd;
    int32_t last = kEnd;
  };

  SlotCache(Memory* memory, std::byte* base, int64_t slot_bytes, int64_t max_slots, Buffer table,
            Buffer uses);

  void Link(int32_t slot);
  void Unlink(int32_t slot);
  bool Evict();
  // The slot has no slice any more.
  void Vacate(int32_t slot);
  void HalveUses();

  Memory* const memory_;
  std::byte* const base_;
  const int64_t slot_bytes_;
  const int64_t max_slots_;
  // Both [slice], taken from the system as they are touched.
  Buffer table_bytes_;
  Buffer uses_bytes_;
  int32_t* const table_;
  uint8_t* const uses_;
  int64_t limit_;
  int64_t used_ = 0;
  int64_t pinned_ = 0;
  int64_t evictions_ = 0;
  int64_t uses_since_halving_ = 0;
  std::vector<Slot> slots_;               // [slot]; 0 stands for no slot
  std::vector<int32_t> vacant_;           // without a slice, memory still taken
  std::vector<int32_t> returned_;         // without a slice, memory given back
  std::array<List, kMaxUses + 1> lists_;  // [uses]
  int fewest_uses_ = 0;                   // no list before it has slots
};

}  // namespace folio
