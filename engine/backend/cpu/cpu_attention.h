#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/chunk_summary.h"

namespace folio {

// Attention of some rows of one sequence with one KV head: the queries of the head's group
// together, so that every page is loaded once for all that see it. Pages go in ascending order and
// a row's arithmetic never depends on the rows beside it: any batch and any chunking gives the same
// bits. One per thread.
class AttentionWorker {
 public:
  // Tokens per block so that its running softmaxes stay in the second-level cache.
  static int BlockTokens(const KvGeometry& geometry);

  struct Block {
    const SequenceSlice* slice = nullptr;
    int first_row = 0;  // of the slice
    int num_rows = 0;
    int kv_head = 0;
    int layer = 0;
    // cos and sin of the plan's pinned distance, or null.
    const float* pinned_cos = nullptr;
    const float* pinned_sin = nullptr;
  };

  //   qkv  [step rows][(num_heads + 2 num_kv_heads) * head_dim]
  //   out  [step rows][num_heads * head_dim]
  void Run(const CpuAttentionContext& context, const Block& block, const float* qkv, float* out);

 private:
  // One query (token and head of the group) on one page.
  struct Visit {
    int query = 0;
    int64_t page_distance = 0;
    int lo = 0;
    int hi = 0;
  };
  // A chunk that a query's head chose. Sorted: by chunk, then query.
  struct ChosenChunk {
    int64_t chunk = 0;
    int query = 0;
    int slots_after = 0;  // chosen chunks from this one up to the query's own
    bool operator<(const ChosenChunk& other) const {
      return chunk != other.chunk ? chunk < other.chunk : query < other.query;
    }
  };

  struct RowRange {
    int begin = 0;
    int end = 0;
  };
  // Rows of the block that a stage speaks of.
  RowRange CoveredRows(const AttentionStage& stage) const;
  void LoadQueries(const float* qkv);
  void RunContext(const AttentionStage& stage);
  void RunSinks(const AttentionStage& stage);
  void RunChunks(const AttentionStage& stage);
  void ChooseChunks(int row, int head, std::span<const int64_t> picks);
  // Page `page` of the chunk that `chosen`, all of one chunk, have in common.
  void CollectVisits(std::span<const ChosenChunk> chosen, int64_t page);
  // Folds the collected visits of one page into their queries; `queries` is the base they start
  // from. `next` is the page that will be visited after it.
  void VisitPage(FrameId frame, FrameId next, const std::vector<float>& queries);
  void WriteOutput(float* out) const;

  int64_t Position(int row) const { return block_.slice->first_position + block_.first_row + row; }
  int query(int row, int head) const { return row * group_ + head; }

  const CpuAttentionContext* context_ = nullptr;
  Block block_;
  int group_ = 1;
  int dim_ = 0;
  int page_tokens_ = 0;

  std::vector<float> raw_;      // [group][rows][dim] queries as they are, for the choice of chunks
  std::vector<float> local_;    // [queries][dim] scaled, rotated by position mod page_tokens
  std::vector<float> pinned_;   // [queries][dim] scaled, rotated by the pinned distance
  std::vector<float> states_;   // [queries][dim + 2]
  std::vector<float> rotated_;  // [kQueryRows][dim]
  std::vector<int64_t> own_;    // [rows] chunk of each row
  std::vector<Visit> visits_;
  std::vector<ChosenChunk> chosen_;
  ChunkSelector selector_;
};

}  // namespace folio
