#include "engine/backend/cpu/attention_waves.h"

#include <algorithm>

namespace folio {
namespace {

// Of a wave of a pass over everything: between waves the disk has little to do, and what is read
// is best used while it is in the caches of the processor.
constexpr int64_t kScanBytes = 16 << 20;

}  // namespace

void AttentionWaves::Run(std::span<const AttentionWorker::Block> blocks, SliceSource* slices,
                         WorkerPool* pool, const float* qkv, float* out) {
  num_blocks_ = blocks.size();
  if (num_blocks_ == 0) return;
  if (workers_.size() < num_blocks_) workers_.resize(num_blocks_);
  pool->ParallelFor(std::ssize(blocks), [&](int64_t n, int) {
    workers_[n].Begin(blocks[n], qkv);
    workers_[n].BeginPass(0);
  });
  for (pass_ = 0; pass_ < NumPasses(); ++pass_) {
    ListItems();
    size_t begin = 0;
    do {
      const size_t end = WaveEnd(begin, *slices);
      ListKeys(begin, end, &wave_);
      if (pass_ == 0 && begin == 0) first_wave_ = wave_;
      ListNext(end, *slices);
      slices->Need(wave_, next_);
      pool->ParallelFor(std::ssize(blocks),
                        [&](int64_t n, int) { VisitBefore(end, &workers_[n], out); });
      begin = end;
    } while (begin < items_.size());
  }
}

int AttentionWaves::NumPasses() const {
  int passes = 0;
  for (size_t n = 0; n < num_blocks_; ++n) passes = std::max(passes, workers_[n].num_passes());
  return passes;
}

// A worker goes on to its next pass, or finishes, as soon as it can: to wake all threads once more
// takes longer than what a decoding row does in between.
void AttentionWaves::VisitBefore(size_t end, AttentionWorker* worker, float* out) const {
  if (!Takes(*worker)) return;
  worker->VisitBefore(EndFor(worker->block(), end));
  if (end < items_.size()) return;
  worker->EndPass();
  if (pass_ + 1 < worker->num_passes()) {
    worker->BeginPass(pass_ + 1);
  } else {
    worker->Finish(out);
  }
}

void AttentionWaves::ListItems() {
  items_.clear();
  for (size_t n = 0; n < num_blocks_; ++n) {
    const AttentionWorker& worker = workers_[n];
    if (!Takes(worker)) continue;
    const AttentionWorker::Block& block = worker.block();
    for (const int64_t page : worker.pages()) {
      items_.push_back({block.context, page, block.kv_head, worker.scans()});
    }
  }
  std::sort(items_.begin(), items_.end());
  items_.erase(std::unique(items_.begin(), items_.end()), items_.end());
}

void AttentionWaves::ListKeys(size_t begin, size_t end, std::vector<SliceKey>* keys) const {
  const int layer = workers_[0].block().layer;
  keys->clear();
  for (size_t n = begin; n < end; ++n) {
    const Item& item = items_[n];
    const SequenceSlice& slice = *item.context->slice;
    keys->push_back({slice.pages[item.page - slice.first_page], layer, item.kv_head, slice.reader,
                     item.scanned});
  }
}

size_t AttentionWaves::WaveEnd(size_t begin, const SliceSource& slices) const {
  if (begin == items_.size()) return begin;
  int64_t most = slices.wave_slices();
  if (items_[begin].scanned) {
    // Half of what may be asked for: the other half of memory stays as it is for the next pass.
    most = std::min(most / 2, kScanBytes / items_[begin].context->geometry().sealed_slice_bytes());
  }
  return std::min(items_.size(), begin + static_cast<size_t>(std::max<int64_t>(1, most)));
}

// The next wave; behind the last one of a layer what its first one has read, of the next layer:
// passes over everything begin alike in all of them.
void AttentionWaves::ListNext(size_t end, const SliceSource& slices) {
  ListKeys(end, WaveEnd(end, slices), &next_);
  const AttentionWorker::Block& block = workers_[0].block();
  const bool is_last = end == items_.size() && pass_ + 1 == NumPasses();
  if (!is_last || block.layer + 1 == block.context->geometry().num_layers) return;
  for (SliceKey key : first_wave_) {
    if (!key.scanned) continue;
    ++key.layer;
    next_.push_back(key);
  }
}

int64_t AttentionWaves::EndFor(const AttentionWorker::Block& block, size_t end) const {
  if (end == items_.size()) return kUnbounded;
  const Item& next = items_[end];
  if (block.context != next.context) return block.context < next.context ? kUnbounded : 0;
  return block.kv_head < next.kv_head ? next.page + 1 : next.page;
}

}  // namespace folio
