#include "engine/kv/tier_mover.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace folio {

TierMover::~TierMover() {
  EndStep();
  for (Batch& batch : late_) {
    while (!batch.reads->Wait()) {
    }
  }
  EndStep();
}

// Half for the wave that is worked on, half for the next one.
int64_t TierMover::wave_slices() const {
  int64_t held = pages_->slots_away_from_home();
  for (const Batch& batch : late_) held += std::ssize(batch.slices);
  return std::max<int64_t>(1, (slots_->limit() - held) / 2);
}

TierMover::Batch TierMover::Start(std::span<const SliceKey> slices, bool all) {
  Batch batch;
  std::vector<SliceRead> reads;
  batch.slices.reserve(slices.size());
  batch.frames.reserve(slices.size());
  reads.reserve(slices.size());
  absl::Cleanup give_back = [&] {
    for (const int64_t slice : batch.slices) slots_->Forget(slice);
  };
  bool tried = false;
  for (const SliceKey& key : slices) {
    const int64_t slice = NumberOf(key);
    // What is lost already is not waited for again: in no slot, it reads as zeros.
    if (slots_->Contains(slice) || pages_->IsLost(key.frame)) continue;
    while (!slots_->Take(slice)) {
      if (!all || !pages_->AwaitSlot(&tried)) break;
    }
    if (!slots_->Contains(slice)) break;
    batch.slices.push_back(slice);
    batch.frames.push_back(key.frame);
    SliceReads& reader = Reader(key.reader);
    ++reader.misses;
    --reader.hits;  // Need counts it as one
    reads.push_back({key.frame, key.layer * kv_heads_ + key.kv_head, slots_->At(slice)});
  }
  if (!reads.empty()) batch.reads = home_->StartReads(std::move(reads));
  std::move(give_back).Cancel();
  return batch;
}

void TierMover::Lose(const Batch& batch, size_t n) {
  std::memset(slots_->At(batch.slices[n]), 0, static_cast<size_t>(slots_->slot_bytes()));
  pages_->MarkLost(batch.frames[n]);
}

void TierMover::Finish(Batch* batch) {
  if (batch->reads == nullptr) return;
  const auto start = std::chrono::steady_clock::now();
  const bool ended = batch->reads->Wait();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  counts_.seconds_waited += waited.count();
  step_seconds_waited_ += waited.count();
  for (size_t n = 0; n < batch->slices.size(); ++n) {
    if (!ended || !batch->reads->status(n).ok()) Lose(*batch, n);
  }
  counts_.bytes_in += std::ssize(batch->slices) * slots_->slot_bytes();
  if (!ended) GiveUp(batch);
  batch->reads = nullptr;
}

void TierMover::GiveUp(Batch* batch) {
  late_.reserve(late_.size() + 1);  // the only thing that may throw
  for (size_t n = 0; n < batch->slices.size(); ++n) {
    slots_->Pin(batch->slices[n]);
    pages_->AddRef(batch->frames[n], false);
  }
  late_.push_back({batch->slices, std::move(batch->frames), std::move(batch->reads)});
}

SliceReads& TierMover::Reader(int reader) {
  const auto at = static_cast<size_t>(reader);
  if (at >= readers_.size()) readers_.resize(at + 1);
  return readers_[at];
}

SliceReads TierMover::CountsOf(int reader) const {
  const auto at = static_cast<size_t>(reader);
  SliceReads counts = at < last_readers_.size() ? last_readers_[at] : SliceReads{};
  counts.bytes_in = counts.misses * slots_->slot_bytes();
  counts.seconds_waited = last_seconds_waited_;
  return counts;
}

void TierMover::Unpin() {
  for (const int64_t slice : pinned_) slots_->Unpin(slice);
  pinned_.clear();
}

void TierMover::KeepPinned(Batch* batch) {
  pinned_.insert(pinned_.end(), batch->slices.begin(), batch->slices.end());
  *batch = {};
}

void TierMover::Need(std::span<const SliceKey> slices, std::span<const SliceKey> next) {
  Unpin();
  arriving_ = std::exchange(next_, {});
  const int64_t arrived = std::ssize(arriving_.slices);
  // Room for all that will be pinned, some of it twice.
  pinned_.reserve(arriving_.slices.size() + 2 * slices.size());
  for (const SliceKey& key : slices) {
    const int64_t slice = NumberOf(key);
    if (!slots_->Contains(slice)) continue;
    slots_->Pin(slice);
    pinned_.push_back(slice);
  }
  counts_.hits += std::ssize(pinned_) - arrived;
  missing_ = Start(slices, true);
  counts_.hinted += arrived;
  counts_.misses += std::ssize(missing_.slices) + arrived;
  if (!next.empty()) next_ = Start(next, false);
  Finish(&arriving_);
  Finish(&missing_);
  KeepPinned(&arriving_);
  KeepPinned(&missing_);
  for (const SliceKey& key : slices) {
    ++Reader(key.reader).hits;
    if (slots_->Contains(NumberOf(key))) {
      key.scanned ? slots_->NoteScan(NumberOf(key)) : slots_->CountUse(NumberOf(key));
    } else {
      pages_->MarkLost(key.frame);  // or no slot is left: the wave is larger than it may be
    }
  }
}

void TierMover::EndStep() {
  Unpin();
  for (Batch* batch : {&arriving_, &missing_, &next_}) {
    Finish(batch);
    for (const int64_t slice : batch->slices) slots_->Unpin(slice);
    *batch = {};
  }
  readers_.swap(last_readers_);
  std::fill(readers_.begin(), readers_.end(), SliceReads{});
  last_seconds_waited_ = std::exchange(step_seconds_waited_, 0);
  std::erase_if(late_, [&](const Batch& batch) {
    if (!batch.reads->done()) return false;
    for (size_t n = 0; n < batch.slices.size(); ++n) {
      slots_->Unpin(batch.slices[n]);
      pages_->Release(batch.frames[n], false);
    }
    return true;
  });
}

}  // namespace folio
