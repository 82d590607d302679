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

  // Rows whose choice is wanted, for heads first_head .. first_head + num_heads - 1, of one KV head
  // if each chooses for itself.
  struct Rows {
    int layer = 0;
    int first_head = 0;
    int num_heads = 1;
    // They choose together, by the mean of their scores, and are all heads of their KV heads; else
    // each for itself.
    bool together = false;
    int64_t first_position = 0;
    // [num_heads][head_stride]: [rows][padded_dim] raw queries of each head
    const float* queries = nullptr;
    int64_t head_stride = 0;
    // One past the last candidate of each row, not descending.
    std::span<const int64_t> ends;
  };

  // Candidates are chunks 1 .. ends[row] - 1; ties go to the smaller index. Reads dim numbers of
  // the cache's dtype per candidate and summary of it; 2 * dim FLOPs per candidate, head and row.
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
  // That many tiles are on their way: those of a head lie far apart, and one is read faster than
  // memory answers.
  static constexpr int64_t kTilesAhead = 4;
  // Likewise of 8-bit copies.
  static constexpr int64_t kFramesAhead = 2;

  // A list is the choice of one head, or of those that choose together, for one row. A *set* is the
  // lists whose scores come from the same tiles: those of a head, or, where a KV head has one
  // summary for all of its heads, those of the group. In a set rows ascend, and heads in a row.
  struct Shape {
    int num_sets = 0;
    int heads = 1;  // whose lists are in a set
    int rows = 0;
    int terms = 1;  // products whose sum is a score

    int lists() const { return heads * rows; }  // of a set
  };
  // One product of queries and a tile. Heads that choose together and have a summary in common are
  // one term, of the mean of their queries: scores are linear in them.
  struct Term {
    int64_t queries = 0;  // where they begin in packed_
    int head = 0;
    int vector = 0;  // which of the chunk's
  };
  size_t ListOf(int head, int row) const {
    const int set = head / shape_.heads;
    return set * shape_.lists() + row * shape_.heads + head % shape_.heads;
  }
  int RowOf(size_t list) const { return static_cast<int>(list) % shape_.lists() / shape_.heads; }
  int HeadOf(size_t list) const {
    const int in_set = static_cast<int>(list) % shape_.heads;
    return static_cast<int>(list) / shape_.lists() * shape_.heads + in_set;
  }
  static Shape ShapeOf(const SummaryLayout& layout, const Rows& rows);

  void Offer(size_t list, float score, int64_t chunk);
  // What a chunk must exceed to be among the best of a list so far.
  float Threshold(size_t list) const;
  void MakeTerms(const CpuAttentionContext& context, const Rows& rows);
  // queries_ = part(x) for each number x of those of heads [first_head, first_head + heads),
  // counted from rows.first_head, in the order of a set; of heads that choose together the sum,
  // over the number of all of them.
  void CollectQueries(const Rows& rows, int dim, int first_head, int heads, float (*part)(float));
  // A term of queries_.
  void AddTerm(const CpuAttentionContext& context, int head, int vector);
  void Scan(const CpuAttentionContext& context, const Rows& rows);
  // All lists against the copies of so many tiles, then against those tiles that may hold a pick.
  void ScanCoarsely(const CpuAttentionContext& context, const Rows& rows, int64_t num_tiles);
  void MakeCoarseQueries(const CpuAttentionContext& context, int layer);
  // Bounds of the tiles of a frame, `tile` being its first; those from next_tile on are fetched on
  // the way.
  void BoundTiles(const CpuAttentionContext& context, int layer, int64_t tile, int64_t next_tile);
  // tiles_ = those of the first num_tiles that may hold a pick of a list of the set, the first
  // frame's among them.
  void TakeTilesWithPicks(const cpu::Kernels& kernels, int set, int64_t num_tiles);
  // All lists of a set against the chunks of one tile; `next_tile` is fetched on the way.
  void ScoreTile(const CpuAttentionContext& context, const Rows& rows, int set, int64_t tile,
                 int64_t next_tile);
  // args->scores and args->above of lists [first, first + args->num_rows) of the set.
  void Score(const CpuAttentionContext& context, const Rows& rows, int set, int first, int64_t tile,
             int64_t next_tile, cpu::ScoreChunksArgs* args) const;
  void ScoreTerm(const CpuAttentionContext& context, int layer, const Term& term, int first,
                 int64_t tile, int64_t next_tile, cpu::ScoreChunksArgs* args) const;
  void TakeLast(const Rows& rows);
  void TakeRandom(const Rows& rows);

  size_t capacity_ = 0;  // picks per list
  Shape shape_;
  SummaryLayout layout_;
  std::vector<Term> terms_;  // [sets][terms]
  ScratchMemory scratch_;
  std::byte* packed_ = nullptr;  // queries of all terms, term_bytes_ each
  int64_t term_bytes_ = 0;
  std::vector<float> queries_;        // [lists of a set][dim]
  std::vector<float> plain_queries_;  // of all terms: [sets][terms][lists of a set][dim]
  std::vector<cpu::CoarseQuery> coarse_queries_;  // [lists]
  // What the best chunk of each tile behind the first frame scores at least and at most, beside
  // what all chunks of a list have in common (CoarseTiles): [lists][bound_floats_].
  std::vector<float> least_;
  std::vector<float> most_;
  int64_t bound_floats_ = 0;
  std::vector<uint8_t> with_picks_;  // [tiles]
  std::vector<int64_t> tiles_;       // those that may hold a pick, ascending
  std::vector<Pick> best_;           // [lists][capacity], best first
  std::vector<int> counts_;          // [lists]
  std::vector<int64_t> picks_;       // [lists][capacity]
};

}  // namespace folio
