#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/rotation_table.h"

namespace folio {

// What the attention code of the CPU backend works with. Borrowed; tables are grown before use.
struct CpuAttentionContext {
  const AttentionSetup* setup = nullptr;
  const cpu::Kernels* kernels = nullptr;
  const RotationTable* positions = nullptr;  // stride 1
  const RotationTable* pages = nullptr;      // stride page_tokens
  float scale = 1.0f;

  const KvGeometry& geometry() const { return setup->geometry; }
  const std::byte* Keys(FrameId frame, int layer, int kv_head) const {
    return setup->kv.Frame(frame) + geometry().slice_offset(layer, kv_head);
  }
  const std::byte* Values(FrameId frame, int layer, int kv_head) const {
    return Keys(frame, layer, kv_head) + geometry().half_slice_bytes();
  }
  float* SummaryTile(FrameId frame, int layer, int head) const {
    return reinterpret_cast<float*>(setup->summaries.Frame(frame) +
                                    geometry().summary_offset(layer, head));
  }
};

// Representations of chunks, one query head of one sequence at a time. Source: LongHeads (Lu et al.
// 2024), equations 1-2 with chunk-local rotation. Holds scratch space; one per thread.
class ChunkSummarizer {
 public:
  // Collects the queries of the slice's rows for `head` and writes the representation of every
  // chunk that they complete. FLOPs per chunk: 4 w^2 d + 4 w d.
  void Run(const CpuAttentionContext& context, const SequenceSlice& slice, int layer, int head,
           const float* qkv);

 private:
  struct Chunk {
    int64_t index = 0;
    int layer = 0;
    int head = 0;
    int kv_head = 0;
    int num_pages = 0;
    const SequenceSlice* slice = nullptr;
    const float* queries = nullptr;  // [w][dim], rotated by their offset in the chunk
  };
  void Summarize(const CpuAttentionContext& context, const Chunk& chunk);
  void MeanOutput(const CpuAttentionContext& context, const Chunk& chunk);
  void WeighKeys(const CpuAttentionContext& context, const Chunk& chunk);
  FrameId Page(const CpuAttentionContext& context, const Chunk& chunk, int page) const;

  std::vector<float> states_;   // [w][dim + 2]
  std::vector<float> rotated_;  // [kQueryRows][dim]
  std::vector<float> query_;    // [dim], the mean output, which serves as the chunk's query
  std::vector<float> weights_;  // [w]
  std::vector<float> partial_;  // [dim]
  std::vector<float> result_;   // [dim]
};

// The num_free_picks best chunks of some rows of one head. Source: LongHeads, equation 3, with
// un-rotated queries. Holds scratch space; one per thread.
class ChunkSelector {
 public:
  // For each row: candidates are chunks 1 .. own - 2; ties go to the smaller index.
  //   queries  [num_rows][padded_dim] raw queries of one head
  //   own      [num_rows] chunk of each query, not descending
  // Afterwards Picks(row) lists the chosen chunks in ascending order.
  // Reads 4 * dim bytes per candidate; 2 * dim FLOPs per candidate and row.
  void Run(const CpuAttentionContext& context, const SequenceSlice& slice, int layer, int head,
           std::span<const float> queries, std::span<const int64_t> own);

  std::span<const int64_t> Picks(int row) const {
    return {&picks_[row * capacity_], static_cast<size_t>(counts_[row])};
  }

 private:
  struct Scored {
    float score;
    int64_t chunk;
  };
  void Offer(int row, float score, int64_t chunk);
  // What a chunk must exceed to be among the row's best so far.
  float Threshold(int row) const;
  void ScoreTile(const cpu::ScoreChunksArgs& args, int first_row, int64_t tile,
                 const cpu::Kernels& kernels, std::span<const int64_t> own);
  void Scan(const CpuAttentionContext& context, const SequenceSlice& slice, int layer, int head,
            std::span<const float> queries, std::span<const int64_t> own);

  size_t capacity_ = 0;         // picks per row
  std::vector<Scored> best_;    // [rows][capacity], best first
  std::vector<int> counts_;     // [rows]
  std::vector<int64_t> picks_;  // [rows][capacity]
};

}  // namespace folio
