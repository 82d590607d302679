#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/cpu/attention_context.h"

namespace folio {

// The num_free_picks best chunks of some rows. Source: LongHeads, equation 3, with un-rotated
// queries. Holds scratch space; one per thread.
class ChunkSelector {
 public:
  struct Pick {
    float score;
    int64_t chunk;
  };

  // Rows whose choice is wanted: scores are the mean over heads first_head ..
  // first_head + num_heads - 1.
  struct Rows {
    int layer = 0;
    int first_head = 0;
    int num_heads = 1;
    int64_t first_position = 0;
    // [num_heads][head_stride]: [rows][padded_dim] raw queries of each head
    const float* queries = nullptr;
    int64_t head_stride = 0;
    // One past the last candidate of each row, not descending.
    std::span<const int64_t> ends;
  };

  // Candidates are chunks 1 .. ends[row] - 1; ties go to the smaller index. Reads dim numbers of
  // the cache's dtype per candidate and head; 2 * dim FLOPs per candidate, head and row.
  void Run(const CpuAttentionContext& context, const Rows& rows);

  // The choice of a row in ascending order, and best first with its scores.
  std::span<const int64_t> Picks(int row) const {
    return {&picks_[row * capacity_], static_cast<size_t>(counts_[row])};
  }
  std::span<const Pick> Ranked(int row) const {
    return {&best_[row * capacity_], static_cast<size_t>(counts_[row])};
  }

 private:
  // One product of queries and a tile; a score is the sum over the terms.
  struct Term {
    const float* queries = nullptr;  // [rows][dim]
    int head = 0;
    int frame = 0;  // which of the tile's summary frames
  };
  void Offer(int row, float score, int64_t chunk);
  // What a chunk must exceed to be among the row's best so far.
  float Threshold(int row) const;
  void MakeTerms(const CpuAttentionContext& context, const Rows& rows);
  void Scan(const CpuAttentionContext& context, const Rows& rows);
  void ScoreTile(const cpu::ScoreChunksArgs& args, int first_row, int64_t tile,
                 const cpu::Kernels& kernels, std::span<const int64_t> ends);
  void ScoreTileByTerms(const CpuAttentionContext& context, const Rows& rows, int64_t tile,
                        int first_row, int num_rows);
  void TakeLast(const Rows& rows);
  void TakeRandom(const Rows& rows);

  size_t capacity_ = 0;  // picks per row
  std::vector<Term> terms_;
  std::vector<float> positive_;  // [heads][rows][dim], for Quest
  std::vector<float> negative_;
  std::vector<Pick> best_;      // [rows][capacity], best first
  std::vector<int> counts_;     // [rows]
  std::vector<int64_t> picks_;  // [rows][capacity]
};

}  // namespace folio
