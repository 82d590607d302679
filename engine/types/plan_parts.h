#pragma once

#include <cstdint>
#include <limits>

#include "engine/types/limits.h"

namespace folio {

// The plain parts of an AttentionPlan: what kernels are told as it is. Includes nothing that .cu
// files may not.

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// One answer to "which keys, seen at which distance" for the queries `rows_begin <= i < rows_end`.
// A key j <= i is visible if band_begin <= i - j < band_end (and j < num_sinks for kSinks). All
// stages of a query share one softmax; no key may be visible in two stages.
struct AttentionStage {
  enum class Keys : uint8_t {
    kContext,    // stored pages
    kSinks,      // the first num_sinks tokens, kept beside the pages
    kChunks,     // first, previous and own chunk and the head's top chunks (ChunkSelection)
    kTopTokens,  // the head's best tokens of those with j >= num_sinks (TokenSelection)
  };
  enum class Distance : uint8_t {
    kTrue,       // i - j
    kPinned,     // distance_limit for every key
    kClamped,    // min(i, distance_limit) - j: the query stands at distance_limit at most. Sinks
                 // have their true distance as one clamped at kUnbounded
    kCompacted,  // as if the chosen chunks stood side by side (LongHeads)
  };
  Keys keys = Keys::kContext;
  Distance distance = Distance::kTrue;
  int64_t rows_begin = 0;
  int64_t rows_end = kUnbounded;
  int64_t band_begin = 0;
  int64_t band_end = kUnbounded;
  int64_t distance_limit = 0;

  constexpr bool CoversRow(int64_t i) const { return rows_begin <= i && i < rows_end; }
};

// Per-head choice of chunks (docs/methods.md, section 7). chunk_tokens == 0: none. A
// query in chunk o (o = i / chunk_tokens) sees chunk 0, chunk o-1, its own chunk up to itself, and
// num_free_picks chunks c of 1..o-2 with the largest score <q_i, summary(c)>; ties: the
// smaller index. A summary is made from the chunk's own queries, keys and values alone.
struct ChunkSelection {
  // What represents a chunk. Chunks are compared before they have a place, so keys are rotated by
  // their offset in the chunk (Kl) where not said otherwise, and the scoring query is never
  // rotated. The last two are adapted to that: they take from Quest and InfLLM how a block of keys
  // is summed up, not the positions at which those methods score and see it.
  enum class Scorer : uint8_t {
    kLongHeads,  // keys weighted by the mean output of the chunk's own attention (Lu et al. 2024)
    kMeanKey,    // mean of Kl
    // sum_x max(q_x max_t Kl_tx, q_x min_t Kl_tx) >= <q, Kl_t> for every t. Tang et al. 2024
    // (Quest) bound the logit itself: pages of 16 keys and queries, rotated by their true
    // positions.
    kQuest,
    // mean un-rotated key of the 4 tokens with most attention mass among the chunk's own queries.
    // Xiao et al. 2024 (InfLLM) count the queries of a sliding window, rotate the scoring query by
    // the window's length and sum the scores of all heads.
    kRepresentatives,
  };
  // Whose scores decide.
  enum class Share : uint8_t {
    kNone,    // each query head for itself
    kGroup,   // the mean over the query heads that share a KV head
    kLayer,   // the mean over all heads of the layer
    kLayers,  // each head for itself, in layer 0; later layers take over its choice
  };
  enum class Order : uint8_t { kBest, kLast, kRandom };  // which candidates are taken

  int chunk_tokens = 0;
  int num_free_picks = 0;
  Scorer scorer = Scorer::kLongHeads;
  Share share = Share::kNone;
  Order order = Order::kBest;
  bool first_chunk = true;  // false: chunk 0 is seen by queries in chunks 0 and 1 only
  // The released code of LongHeads: a prompt row does not see its own token; in decode the last
  // token of a chunk forces {first, own} and lets the previous chunk compete.
  bool prompt_skips_self = false;
  bool decode_boundary = false;

  constexpr bool enabled() const { return chunk_tokens > 0; }
};

// Choice of single tokens per query head (LM-Infinite's middle tokens). count == 0: none.
struct TokenSelection {
  int count = 0;
  // Layers before this one do not choose.
  int first_layer = 0;
  // Every row chooses; else the last row of the prompt and those of the answer.
  bool all_rows = false;
  // No token at all is taken while fewer than `count` compete (the released code).
  bool all_or_none = false;
};

}  // namespace folio
