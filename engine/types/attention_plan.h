#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/memory.h"
#include "engine/types/kv_types.h"
#include "engine/types/rotary.h"
#include "engine/types/sampling.h"

namespace folio {

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
    kClamped,    // min(i, distance_limit) - j: the query stands at distance_limit at most
    kCompacted,  // as if the chosen chunks stood side by side (LongHeads)
  };
  Keys keys = Keys::kContext;
  Distance distance = Distance::kTrue;
  int64_t rows_begin = 0;
  int64_t rows_end = kUnbounded;
  int64_t band_begin = 0;
  int64_t band_end = kUnbounded;
  int64_t distance_limit = 0;

  bool CoversRow(int64_t i) const { return rows_begin <= i && i < rows_end; }
};

// Per-head choice of chunks (docs/methods.md, section 7). chunk_tokens == 0: none. A query in
// chunk o (o = i / chunk_tokens) sees chunk 0, chunk o-1, its own chunk up to itself, and
// num_free_picks chunks c of 1..o-2 with the largest score <q_i, representation(c)>; ties: the
// smaller index. A representation is made from the chunk's own queries, keys and values alone.
struct ChunkSelection {
  // What represents a chunk. Keys are rotated by their offset in the chunk (Kl) where not said
  // otherwise; the scoring query is never rotated.
  enum class Scorer : uint8_t {
    kLongHeads,  // keys weighted by the mean output of the chunk's own attention (Lu et al.)
    kMeanKey,    // mean of Kl
    kQuest,      // sum_x max(q_x max_t Kl_tx, q_x min_t Kl_tx): bounds every logit (Tang et al.)
    kRepresentatives,  // mean un-rotated key of the 4 tokens with most attention mass (InfLLM)
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

  bool enabled() const { return chunk_tokens > 0; }
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

// What a strategy wants to stay stored.
struct Retention {
  // Tokens before the next query that stay; older pages are dropped. kUnbounded: everything stays.
  int64_t window_tokens = kUnbounded;
  // The first tokens, kept beside the pages.
  int num_sinks = 0;
};

// In which form keys lie in the cache.
enum class KeyForm : uint8_t {
  kPageRotated,  // by their offset in the page
  kRaw,          // not rotated; pages are rotated when they are read
};

// Base of a rotary table that follows the length n of the text (dynamic NTK, exact):
// base * (factor * n / trained_length - (factor - 1))^(d / (d - 2)) for n > trained_length.
struct DynamicBase {
  double base = 10000.0;
  double factor = 1.0;
  int trained_length = 0;
  int rotary_dim = 0;
};

// max(ln(n) / ln(base_length), 1) multiplies the logits of a query that sees n keys, in layers from
// first_layer on (Entropy-ABF). base_length == 0: off.
struct EntropyScale {
  double base_length = 0;
  int first_layer = 0;
};

// Tokens of a prompt that are kept (truncation): at most keep_tokens, and so many that the answer
// still fits into reach_tokens. keep_tokens == 0: all.
struct PromptTruncation {
  enum class Side : uint8_t { kLeft, kRight, kCenter };  // what is cut

  int64_t keep_tokens = 0;
  int64_t reach_tokens = 0;
  Side side = Side::kLeft;

  bool enabled() const { return keep_tokens > 0; }
};

// The four answers of a strategy, and the numbers of a position scheme; constant through the life
// of a request.
struct AttentionPlan {
  std::vector<AttentionStage> stages;
  ChunkSelection selection;
  TokenSelection top_tokens;
  Retention retention;
  PromptTruncation truncation;

  KeyForm key_form = KeyForm::kPageRotated;
  // Rotation of the prompt's rows, and of the answer's and of chunk representations. Null: that of
  // the checkpoint; the prompt's. If they differ, key_form is kRaw.
  std::shared_ptr<const Rotary> rotary;
  std::shared_ptr<const Rotary> decode_rotary;
  // A strategy whose answer is read without the scaling that its prompt may have.
  bool unscaled_decode = false;
  // Instead of both: rows of the prompt see the base of the prompt's length, later ones that of
  // their own. key_form is kRaw.
  std::optional<DynamicBase> dynamic_base;
  EntropyScale entropy;

  // Rows before this one belong to the prompt. kUnbounded: all of them (documents).
  int64_t prompt_tokens = kUnbounded;

  bool IsPromptRow(int64_t i) const { return i < prompt_tokens; }
};

// Rolling state of chunk summaries of one sequence: locally rotated queries of its unfinished
// chunk, [num_layers][num_heads][chunk_tokens][padded_dim] fp32, in the backend's memory. Shared
// with forks until one of them goes on.
struct PendingQueries {
  std::shared_ptr<Buffer> data;
};

// Chunks that the heads chose for the last row of a slice, best first.
struct ChunkPicks {
  struct Pick {
    int64_t chunk = -1;  // -1: none
    float score = 0.0f;
  };
  // [num_layers][num_heads][num_free_picks]
  std::vector<Pick> picks;
};

// The tokens of one sequence that run in one step, with the storage they read and write.
// Rows row_begin .. row_begin + num_rows - 1 of the step hold positions first_position and on; all
// of them belong to the prompt, or none.
struct SequenceSlice {
  int row_begin = 0;
  int num_rows = 0;
  int64_t first_position = 0;
  const AttentionPlan* plan = nullptr;
  // pages[p - first_page] holds tokens p * page_tokens and on; covers every token of the slice.
  int64_t first_page = 0;
  std::span<const FrameId> pages;
  // Page s of the copies of the first tokens (Retention::num_sinks).
  std::span<const FrameId> sinks;
  // summaries[t] holds chunks 16 t .. 16 t + 15; of scorers with two vectors per chunk, frames 2 t
  // and 2 t + 1 do.
  std::span<const FrameId> summaries;
  PendingQueries* pending_queries = nullptr;
  // Where the choices of the last row go when the step is finished; null: nobody asks.
  std::shared_ptr<ChunkPicks> picks = nullptr;
};

// One step of the engine: all rows of all sequences. Rows that no slice covers are padding: what
// verbs leave there means nothing.
struct StepBatch {
  int num_rows = 0;
  std::vector<SequenceSlice> slices;
  // One per row, in the vocabulary; or -1 - k for what task k of the step before this one draws.
  std::vector<int32_t> tokens;
  std::vector<LogitsTask> logits;
};

// Summary frames per 16 chunks.
inline int FramesPerSummaryTile(const ChunkSelection& selection) {
  return selection.scorer == ChunkSelection::Scorer::kQuest ? 2 : 1;
}

}  // namespace folio
