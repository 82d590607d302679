#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/cpu/cpu_attention.h"
#include "engine/base/worker_pool.h"

namespace folio {

// The blocks of one layer, a slice of the step after the other. Where there are fewer than keep all
// threads busy, heads of a group that choose chunks each for itself lie in blocks of their own.
void ListBlocks(std::span<const CpuAttentionContext> contexts, int layer, int num_threads,
                std::vector<AttentionWorker::Block>* blocks);

// Attention of one layer where every page is in memory. Threads take blocks; where there are too
// few blocks for them, as for one stream of a model with few KV heads, those that read a long range
// of tokens are taken apart by segments. The bits are the same. Engine thread only.
class AttentionParts {
 public:
  // `workers`: one per thread of the pool.
  void Run(std::span<const AttentionWorker::Block> blocks, std::span<AttentionWorker> workers,
           WorkerPool* pool, const float* qkv, float* out);

 private:
  // A block that is taken apart.
  struct Split {
    const AttentionWorker::Block* block = nullptr;
    AttentionWorker::Segments segments;
    int64_t states = 0;  // of the first segment, in states_
  };
  // A whole block, or some segments of one.
  struct Task {
    const AttentionWorker::Block* block = nullptr;
    AttentionWorker::Segments segments;
    float* states = nullptr;  // null: the whole block
  };
  // Fills splits_ and tasks_.
  void Plan(std::span<const AttentionWorker::Block> blocks, int num_threads);
  void AddTasks(const Split& split, int64_t num_tasks);

  std::vector<Split> splits_;
  std::vector<Task> tasks_;
  std::vector<float> states_;  // of all split blocks: [segments][SegmentFloats]
};

}  // namespace folio
