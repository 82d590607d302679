#include "engine/kv/slot_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Uses per slot after which all counts are halved, so that what was read once does not stay. Of 1
// to 64 it gives the most hits on natural text (tests/engine/eviction_policy_test.cc).
constexpr int64_t kUsesPerHalving = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<SlotCache>> SlotCache::Create(Memory* memory, int64_t slot_bytes,
                                                             int64_t max_slots,
                                                             int64_t num_slices) {
  FOLIO_ASSIGN_OR_RETURN(Buffer table,
                         Buffer::Create(HostMemory(), num_slices * int64_t{sizeof(int32_t)}));
  FOLIO_ASSIGN_OR_RETURN(Buffer uses, Buffer::Create(HostMemory(), num_slices));
  const auto base = memory->Allocate((max_slots + 1) * slot_bytes);
  if (!base.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(base.status().message(), " for slots of the KV cache; lower --kv-bytes"));
  }
  return std::unique_ptr<SlotCache>(
      new SlotCache(memory, *base, slot_bytes, max_slots, std::move(table), std::move(uses)));
}

SlotCache::SlotCache(Memory* memory, std::byte* base, int64_t slot_bytes, int64_t max_slots,
                     Buffer table, Buffer uses)
    : memory_(memory),
      base_(base),
      slot_bytes_(slot_bytes),
      max_slots_(max_slots),
      table_bytes_(std::move(table)),
      uses_bytes_(std::move(uses)),
      table_(table_bytes_.as<int32_t>()),
      uses_(uses_bytes_.as<uint8_t>()),
      limit_(max_slots) {
  // To take and to give back a slot needs no other memory.
  slots_.reserve(max_slots + 1);
  vacant_.reserve(max_slots);
  returned_.reserve(max_slots);
  slots_.emplace_back();
}

SlotCache::~SlotCache() { memory_->Free(base_, (max_slots_ + 1) * slot_bytes_); }

bool SlotCache::Take(int64_t slice) {
  if (used_ >= limit_ && !Evict()) return false;
  int32_t slot = kNoSlot;
  for (std::vector<int32_t>* list : {&vacant_, &returned_}) {
    if (list->empty()) continue;
    slot = list->back();
    list->pop_back();
    break;
  }
  if (slot == kNoSlot) {
    slot = static_cast<int32_t>(slots_.size());
    slots_.emplace_back();
  }
  slots_[slot] = {.slice = slice, .pins = 1};
  table_[slice] = slot;
  ++used_;
  ++pinned_;
  return true;
}

void SlotCache::Forget(int64_t slice) {
  if (Contains(slice)) {
    const int32_t slot = table_[slice];
    if (slots_[slot].pins == 0) {
      Unlink(slot);  // by its uses
    } else {
      --pinned_;
    }
    Vacate(slot);
  }
  uses_[slice] = 0;
}

void SlotCache::Vacate(int32_t slot) {
  table_[slots_[slot].slice] = kNoSlot;
  slots_[slot].slice = -1;
  vacant_.push_back(slot);
  --used_;
}

void SlotCache::Pin(int64_t slice) {
  const int32_t slot = table_[slice];
  if (slots_[slot].pins++ > 0) return;
  Unlink(slot);
  ++pinned_;
}

void SlotCache::Unpin(int64_t slice) {
  const int32_t slot = table_[slice];
  if (--slots_[slot].pins > 0) return;
  Link(slot);
  --pinned_;
  if (used_ > limit_) Evict();
}

void SlotCache::NoteScan(int64_t slice) { slots_[table_[slice]].scanned = true; }

void SlotCache::CountUse(int64_t slice) {
  if (++uses_since_halving_ > kUsesPerHalving * limit_) HalveUses();
  uint8_t& uses = uses_[slice];
  if (uses == kMaxUses) return;
  const int32_t slot = table_[slice];
  slots_[slot].scanned = false;
  const bool listed = slots_[slot].pins == 0;
  if (listed) Unlink(slot);
  ++uses;
  if (listed) Link(slot);
}

void SlotCache::HalveUses() {
  uses_since_halving_ = 0;
  for (int64_t slice = 0; slice < uses_bytes_.num_bytes(); ++slice) {
    if (uses_[slice] != 0) uses_[slice] /= 2;  // what was never touched stays so
  }
  std::array<List, kMaxUses + 1> old;
  std::swap(old, lists_);
  fewest_uses_ = 0;
  for (const List& list : old) {
    for (int32_t slot = list.first; slot != kEnd;) {
      const int32_t next = slots_[slot].next;
      Link(slot);
      slot = next;
    }
  }
}

void SlotCache::Link(int32_t slot) {
  const int uses = uses_[slots_[slot].slice];
  List& list = lists_[uses];
  const bool leaves_first = uses == 0 && slots_[slot].scanned;
  slots_[slot].previous = leaves_first ? kEnd : list.last;
  slots_[slot].next = leaves_first ? list.first : kEnd;
  (slots_[slot].previous == kEnd ? list.first : slots_[list.last].next) = slot;
  (slots_[slot].next == kEnd ? list.last : slots_[slots_[slot].next].previous) = slot;
  fewest_uses_ = std::min(fewest_uses_, uses);
}

void SlotCache::Unlink(int32_t slot) {
  const Slot& s = slots_[slot];
  List& list = lists_[uses_[s.slice]];
  (s.previous == kEnd ? list.first : slots_[s.previous].next) = s.next;
  (s.next == kEnd ? list.last : slots_[s.next].previous) = s.previous;
}

bool SlotCache::Evict() {
  while (fewest_uses_ <= kMaxUses && lists_[fewest_uses_].first == kEnd) ++fewest_uses_;
  if (fewest_uses_ > kMaxUses) {
    fewest_uses_ = kMaxUses;
    return false;
  }
  const int32_t slot = lists_[fewest_uses_].first;
  Unlink(slot);
  Vacate(slot);
  ++evictions_;
  return true;
}

void SlotCache::SetLimit(int64_t slots) {
  limit_ = std::min(slots, max_slots_);
  while (used_ > limit_ && Evict()) {
  }
  while (used_ + static_cast<int64_t>(vacant_.size()) > limit_ && !vacant_.empty()) {
    const int32_t slot = vacant_.back();
    vacant_.pop_back();
    memory_->Discard(base_ + slot * slot_bytes_, slot_bytes_);
    returned_.push_back(slot);
  }
}

}  // namespace folio
