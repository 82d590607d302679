#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/types/kv_types.h"
#include "engine/types/plan_parts.h"
#include "engine/types/plan_reading.h"
#include "engine/types/rotary.h"
#include "engine/types/sampling.h"

namespace folio {

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
  // Rotation of the prompt's rows, and of the answer's and of chunk summaries. Null: that of
  // the checkpoint; the prompt's. If they differ, key_form is kRaw.
  std::shared_ptr<const Rotary> rotary;
  std::shared_ptr<const Rotary> decode_rotary;
  // A strategy whose answer is read without the scaling that its prompt may have.
  bool unscaled_decode = false;
  // Instead of both: rows of the prompt see the base of the prompt's length, later ones that of
  // their own. key_form is kRaw.
  std::optional<DynamicBase> dynamic_base;
  EntropyScale entropy;

  // Which of the model's adapters the rows go through; -1: none.
  int adapter = -1;

  // Rows before this one belong to the prompt. kUnbounded: all of them (documents).
  int64_t prompt_tokens = kUnbounded;

  bool IsPromptRow(int64_t i) const { return i < prompt_tokens; }
};

// Pages from that of this token on are open once the first num_tokens tokens are in the cache: they
// are still written, or their chunk is still to be summarised from their keys. Query i reads those
// that are open at i as they were written, and all others sealed.
inline int64_t FirstOpenToken(const AttentionPlan& plan, int page_tokens, int64_t num_tokens) {
  const int64_t together = plan.selection.enabled() ? plan.selection.chunk_tokens : page_tokens;
  return num_tokens / together * together;
}

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
  // Summaries of complete chunks (SummaryLayout).
  std::span<const FrameId> summaries;
  // Frames of the page pool with the queries of the unfinished chunk (kv_types.h: PendingRows);
  // empty where summaries are not made of queries.
  std::span<const FrameId> pending_queries;
  // Where the choices of the last row go when the step is finished; null: nobody asks.
  std::shared_ptr<ChunkPicks> picks = nullptr;
  // SliceKey::reader.
  int reader = 0;
  // Of the logits of its draw (LogitsTask::changes), which take room in a step.
  int num_logit_changes = 0;
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

}  // namespace folio
