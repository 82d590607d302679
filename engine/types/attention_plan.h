#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/types/kv_types.h"

namespace folio {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// One answer to "which keys, seen at which distance" for the queries `rows_begin <= i < rows_end`.
// A key j <= i is visible if band_begin <= i - j < band_end (and j < num_sinks for kSinks). All
// stages of a query share one softmax; no key may be visible in two stages.
struct AttentionStage {
  enum class Keys : uint8_t {
    kContext,  // stored pages
    kSinks,    // the first num_sinks tokens, stored un-rotated
    kChunks,   // first, previous and own chunk and the head's top chunks (ChunkSelection)
  };
  enum class Distance : uint8_t {
    kTrue,       // i - j
    kPinned,     // pinned_distance for every key
    kCompacted,  // as if the chosen chunks stood side by side (LongHeads)
  };
  Keys keys = Keys::kContext;
  Distance distance = Distance::kTrue;
  int64_t rows_begin = 0;
  int64_t rows_end = kUnbounded;
  int64_t band_begin = 0;
  int64_t band_end = kUnbounded;
  int64_t pinned_distance = 0;

  bool CoversRow(int64_t i) const { return rows_begin <= i && i < rows_end; }
};

// Per-head choice of chunks (LongHeads, methods: eq. 1-3). chunk_tokens == 0: none. A query in
// chunk o (o = i / chunk_tokens) sees chunk 0, chunk o-1, its own chunk up to itself, and the
// num_free_picks chunks c of 1..o-2 with the largest <q_i, representation(c)>; ties: the smaller
// index.
struct ChunkSelection {
  int chunk_tokens = 0;
  int num_free_picks = 0;

  bool enabled() const { return chunk_tokens > 0; }
};

// What a strategy wants to stay stored.
struct Retention {
  // Tokens before the next query that stay; older pages are dropped. kUnbounded: everything stays.
  int64_t window_tokens = kUnbounded;
  // The first tokens, kept un-rotated beside the pages.
  int num_sinks = 0;
};

// The four answers of a strategy, constant through the life of a request.
struct AttentionPlan {
  std::vector<AttentionStage> stages;
  ChunkSelection selection;
  Retention retention;
};

// Rolling state of chunk summaries of one sequence: locally rotated queries of its unfinished
// chunk, [num_layers][num_heads][chunk_tokens][padded_dim] fp32.
struct PendingQueries {
  std::vector<float> data;
};

// The tokens of one sequence that run in one step, with the storage they read and write.
// Rows row_begin .. row_begin + num_rows - 1 of the step hold positions first_position and on.
struct SequenceSlice {
  int row_begin = 0;
  int num_rows = 0;
  int64_t first_position = 0;
  const AttentionPlan* plan = nullptr;
  // pages[p - first_page] holds tokens p * page_tokens and on; covers every token of the slice.
  int64_t first_page = 0;
  std::span<const FrameId> pages;
  // Page s of the un-rotated copies of the first tokens (Retention::num_sinks).
  std::span<const FrameId> sinks;
  // summaries[t] holds chunks 16 t .. 16 t + 15.
  std::span<const FrameId> summaries;
  PendingQueries* pending_queries = nullptr;
};

// One step of the engine: all rows of all sequences.
struct StepBatch {
  int num_rows = 0;
  std::vector<SequenceSlice> slices;
};

}  // namespace folio
