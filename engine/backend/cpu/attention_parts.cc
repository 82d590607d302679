#include "engine/backend/cpu/attention_parts.h"

#include <algorithm>

namespace folio {
namespace {

// Tasks per thread, so that no thread waits long for another.
constexpr int64_t kTasksPerThread = 2;
// Blocks with more rows are parts of prompts, which have many of them, and their states are large.
constexpr int kMostRows = 16;

// Parts of each of `count` blocks so that there are `wanted` in all; 1: there are as many.
int64_t PartsOfEach(int64_t count, int64_t wanted) {
  return count == 0 ? 1 : std::max<int64_t>(1, (wanted + count - 1) / count);
}

// Heads of a group that stay together: all of it where they choose together, or with all heads of
// the layer, for which every block compares all chunks.
int HeadsOfBlock(const CpuAttentionContext& context, int64_t parts) {
  using Share = ChunkSelection::Share;
  const ChunkSelection& selection = context.plan().selection;
  const int group = context.group_size();
  const bool apart = selection.share == Share::kNone || selection.share == Share::kLayers;
  if (!selection.enabled() || !apart) return group;
  return static_cast<int>((group + parts - 1) / parts);
}

void AddBlocks(const CpuAttentionContext& context, int layer, int heads,
               std::vector<AttentionWorker::Block>* blocks) {
  const KvGeometry& g = context.geometry();
  const int most_rows = AttentionWorker::BlockTokens(g);
  const int num_rows = context.slice->num_rows;
  for (int row = 0; row < num_rows; row += most_rows) {
    for (int kv_head = 0; kv_head < g.num_kv_heads; ++kv_head) {
      for (int head = 0; head < g.group_size(); head += heads) {
        blocks->push_back({.context = &context,
                           .first_row = row,
                           .num_rows = std::min(most_rows, num_rows - row),
                           .kv_head = kv_head,
                           .first_head = head,
                           .num_heads = std::min(heads, g.group_size() - head),
                           .layer = layer});
      }
    }
  }
}

}  // namespace

void ListBlocks(std::span<const CpuAttentionContext> contexts, int layer, int num_threads,
                std::vector<AttentionWorker::Block>* blocks) {
  int64_t count = 0;
  for (const CpuAttentionContext& context : contexts) {
    const KvGeometry& g = context.geometry();
    const int most_rows = AttentionWorker::BlockTokens(g);
    count += int64_t{g.num_kv_heads} * ((context.slice->num_rows + most_rows - 1) / most_rows);
  }
  const int64_t parts = PartsOfEach(count, kTasksPerThread * num_threads);
  blocks->clear();
  for (const CpuAttentionContext& context : contexts) {
    AddBlocks(context, layer, HeadsOfBlock(context, parts), blocks);
  }
}

void AttentionParts::Run(std::span<const AttentionWorker::Block> blocks,
                         std::span<AttentionWorker> workers, WorkerPool* pool, const float* qkv,
                         float* out) {
  Plan(blocks, pool->num_threads());
  pool->ParallelFor(std::ssize(tasks_), [&](int64_t n, int thread) {
    const Task& task = tasks_[n];
    if (task.states == nullptr) return workers[thread].Run(*task.block, qkv, out);
    workers[thread].RunSegments(*task.block, task.segments, qkv, task.states);
  });
  if (splits_.empty()) return;
  pool->ParallelFor(std::ssize(splits_), [&](int64_t n, int thread) {
    const Split& split = splits_[n];
    workers[thread].FinishSegments(*split.block, split.segments.size(), &states_[split.states],
                                   out);
  });
}

void AttentionParts::Plan(std::span<const AttentionWorker::Block> blocks, int num_threads) {
  splits_.clear();
  tasks_.clear();
  const int64_t per_block = PartsOfEach(std::ssize(blocks), kTasksPerThread * num_threads);
  int64_t num_floats = 0;
  for (const AttentionWorker::Block& block : blocks) {
    AttentionWorker::Segments segments;
    if (per_block > 1 && block.num_rows <= kMostRows) segments = AttentionWorker::SegmentsOf(block);
    if (segments.size() < 2) {
      tasks_.push_back({&block, {}, nullptr});
      continue;
    }
    splits_.push_back({&block, segments, num_floats});
    num_floats += segments.size() * AttentionWorker::SegmentFloats(block);
  }
  states_.resize(std::max<size_t>(states_.size(), num_floats));
  for (const Split& split : splits_) AddTasks(split, std::min(per_block, split.segments.size()));
}

void AttentionParts::AddTasks(const Split& split, int64_t num_tasks) {
  const int64_t size = split.segments.size();
  for (int64_t n = 0; n < num_tasks; ++n) {
    const int64_t first = size * n / num_tasks;
    tasks_.push_back(
        {split.block,
         {split.segments.begin + first, split.segments.begin + size * (n + 1) / num_tasks},
         &states_[split.states + first * AttentionWorker::SegmentFloats(*split.block)]});
  }
}

}  // namespace folio
