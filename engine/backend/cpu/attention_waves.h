#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_attention.h"
#include "engine/base/worker_pool.h"

namespace folio {

// Attention of one layer where not every page is in memory: before each pass the blocks say which
// pages they read, and visit them wave by wave as these come. A block visits the same pages in the
// same order as where all are in memory, so the bits are the same. Engine thread only.
class AttentionWaves {
 public:
  // `blocks` of one layer, in the order of their contexts, which lie one after the other.
  void Run(std::span<const AttentionWorker::Block> blocks, SliceSource* slices, WorkerPool* pool,
           const float* qkv, float* out);

 private:
  // What some block reads: in the order of sequence, page, KV head.
  struct Item {
    const CpuAttentionContext* context;
    int64_t page;
    int kv_head;
    bool scanned;  // by nothing else
    auto place() const { return std::tie(context, page, kv_head); }
    bool operator==(const Item& other) const { return place() == other.place(); }
    bool operator<(const Item& other) const {
      return place() != other.place() ? place() < other.place() : scanned < other.scanned;
    }
  };
  // Whether a block has the pass that is worked on; all plans have at least one.
  bool Takes(const AttentionWorker& worker) const { return pass_ < worker.num_passes(); }
  int NumPasses() const;
  void ListItems();
  // Keys of items [begin, end).
  void ListKeys(size_t begin, size_t end, std::vector<SliceKey>* keys) const;
  // The item up to which the wave goes that starts with item `begin`.
  size_t WaveEnd(size_t begin, const SliceSource& slices) const;
  // What will be asked for after item `end` of the pass, most likely.
  void ListNext(size_t end, const SliceSource& slices);
  // The page up to which a block may read once all items before item `end` are in memory.
  int64_t EndFor(const AttentionWorker::Block& block, size_t end) const;

  // Visits what lies before item `end`.
  void VisitBefore(size_t end, AttentionWorker* worker, float* out) const;

  int pass_ = 0;
  size_t num_blocks_ = 0;
  std::vector<AttentionWorker> workers_;  // one per block, and those of larger steps before
  std::vector<Item> items_;
  std::vector<SliceKey> wave_;
  std::vector<SliceKey> next_;
  std::vector<SliceKey> first_wave_;  // of the layer, if it is scanned
};

}  // namespace folio
