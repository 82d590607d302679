#include "engine/backend/cpu/attention_waves.h"

#include <algorithm>

namespace folio {

void AttentionWaves::Run(std::span<const AttentionWorker::Block> blocks, SliceSource* slices,
                         WorkerPool* pool, const float* qkv, float* out) {
  num_blocks_ = blocks.size();
  if (num_blocks_ == 0) return;
  if (workers_.size() < num_blocks_) workers_.resize(num_blocks_);
  pool->ParallelFor(std::ssize(blocks), [&](int64_t n, int) {
    workers_[n].Begin(blocks[n], qkv);
    workers_[n].BeginPass(0);
  });
  for (pass_ = 0; !Done(); ++pass_) {
    ListItems();
    size_t begin = 0;
    do {
      const auto most = static_cast<size_t>(std::max<int64_t>(1, slices->wave_slices()));
      const size_t end = std::min(items_.size(), begin + most);
      ListKeys(begin, end, &wave_);
      slices->Need(wave_);
      ListKeys(end, std::min(items_.size(), end + most), &hint_);
      slices->Hint(hint_);
      pool->ParallelFor(std::ssize(blocks),
                        [&](int64_t n, int) { VisitBefore(end, &workers_[n], out); });
      begin = end;
    } while (begin < items_.size());
  }
}

bool AttentionWaves::Done() const {
  return std::none_of(workers_.begin(), workers_.begin() + static_cast<std::ptrdiff_t>(num_blocks_),
                      [&](const AttentionWorker& worker) { return Takes(worker); });
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
      items_.push_back({block.context, page, block.kv_head});
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
    keys->push_back({slice.pages[item.page - slice.first_page], layer, item.kv_head, slice.reader});
  }
}

int64_t AttentionWaves::EndFor(const AttentionWorker::Block& block, size_t end) const {
  if (end == items_.size()) return kUnbounded;
  const Item& next = items_[end];
  if (block.context != next.context) return block.context < next.context ? kUnbounded : 0;
  return block.kv_head < next.kv_head ? next.page + 1 : next.page;
}

}  // namespace folio
