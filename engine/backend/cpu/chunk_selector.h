#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/cpu/attention_context.h"
#include "engine/base/scratch_memory.h"

namespace folio {

// The num_free_picks best chunks of some rows. Source: LongHeads, equation 3, with un-rotated
// queries. Holds scratch space; one per thread.
class ChunkSelector {
 public:
  struct Pick {
    float score;
    int64_t chunk;
  };

  // Rows whose choice is wanted, for heads first_head .. first_head + num_heads - 1.
  struct Rows {
    int layer = 0;
    int first_head = 0;
    int num_heads = 1;
    // They choose together, by the mean of their scores; else each for itself.
    bool together = false;
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

  // The choice of a head for a row in ascending order, and best first with its scores. Heads count
  // from first_head; of those that choose together there is one.
  std::span<const int64_t> Picks(int head, int row) const {
    const size_t list = ListOf(head, row);
    return {&picks_[list * capacity_], static_cast<size_t>(counts_[list])};
  }
  std::span<const Pick> Ranked(int head, int row) const {
    const size_t list = ListOf(head, row);
    return {&best_[list * capacity_], static_cast<size_t>(counts_[list])};
  }

 private:
  size_t ListOf(int head, int row) const { return head * num_rows_ + row; }
  // One product of queries and a tile; a score is the sum over the terms.
  struct Term {
    int64_t queries = 0;  // where they begin in packed_
    int head = 0;
    int frame = 0;  // which of the tile's summary frames
  };
  void Offer(size_t list, float score, int64_t chunk);
  // What a chunk must exceed to be among the best of a list so far.
  float Threshold(size_t list) const;
  void MakeTerms(const CpuAttentionContext& context, const Rows& rows);
  // `queries` [rows][dim]
  void AddTerm(const CpuAttentionContext& context, const float* queries, int head, int frame);
  const std::byte* PackedQueries(const CpuAttentionContext& context, const Term& term,
                                 int first_row) const;
  void Scan(const CpuAttentionContext& context, const Rows& rows);
  // `next_tile` is fetched on the way.
  void ScoreTile(const CpuAttentionContext& context, const Rows& rows, int head, int64_t tile,
                 int64_t next_tile);
  // Where a score is the sum of several products.
  void ScoreTileByTerms(const CpuAttentionContext& context, const Rows& rows, int head,
                        int64_t tile, int first_row, int num_rows);
  void TakeLast(const Rows& rows);
  void TakeRandom(const Rows& rows);

  size_t capacity_ = 0;  // picks per list
  size_t num_rows_ = 0;
  std::vector<Term> terms_;  // [heads that choose][terms_of_head]
  int terms_of_head_ = 0;
  ScratchMemory scratch_;
  std::byte* packed_ = nullptr;  // queries of all terms, term_bytes_ each
  int64_t term_bytes_ = 0;
  std::vector<float> positive_;  // [rows][dim], for Quest
  std::vector<float> negative_;
  // Lists are [heads that choose][rows].
  std::vector<Pick> best_;      // [lists][capacity], best first
  std::vector<int> counts_;     // [lists]
  std::vector<int64_t> picks_;  // [lists][capacity]
};

}  // namespace folio
