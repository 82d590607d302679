#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/sched/fair_share.h"
#include "engine/types/attention_plan.h"
#include "engine/types/request.h"

namespace folio {

// A token that a started step draws.
inline constexpr int32_t kNotDrawnYet = -1;

// One token stream that the engine works on: a request, or the prefill of a document. Progress is
// three counters and nothing else: num_known tokens exist, num_in_kv of them are in the cache,
// num_scheduled of them are in the running step. Engine thread only.
struct Sequence {
  RequestId id = 0;
  AttentionPlan plan;

  // Token ids from position tokens_begin on; shared with the document for its prefill.
  std::shared_ptr<std::vector<int32_t>> tokens;
  int64_t tokens_begin = 0;

  int64_t num_known = 0;
  int64_t num_in_kv = 0;
  int64_t num_scheduled = 0;

  // The prefill ends with a next token (requests) or not (documents).
  bool generates = false;
  // The log-probability of every token of the prompt is wanted: a row needs its logits. And of so
  // many most likely ones beside it.
  bool scores = false;
  int num_score_top_logprobs = 0;
  // Tokens up to here are prompt, later ones are answer.
  int64_t num_prompt = 0;
  // Upper bound of num_known, for the reservation.
  int64_t max_tokens = 0;
  // On the steps; its tenant outlives it.
  Claim claim;
  // Its memory leaves for others once nobody reads it: no bound of a tenant counts it.
  bool leaves_for_others = false;
  // Not to be scheduled for now (a document whose uploader is gone, an answer that nobody reads).
  bool paused = false;

  // Cache to start from, or null. REQUIRES: complete before admission, alive until the sequence
  // ends.
  const Sequence* prefix = nullptr;

  // How the next token of an answer is drawn; row and index are the runner's to fill in.
  LogitsTask draw;
  // How it is drawn depends on the last one.
  bool draws_follow_tokens = false;

  // Where the choices of chunks go; null: nobody asks.
  std::shared_ptr<ChunkPicks> picks;

  SequenceKv kv;
  int64_t reserved_bytes = 0;

  bool decoding() const { return generates && num_in_kv >= num_prompt; }
  int64_t num_pending() const { return num_known - num_in_kv; }
  // Chunks that the next `num_tokens` tokens complete.
  int64_t ChunksCompleted(int64_t num_tokens) const {
    if (!plan.selection.enabled()) return 0;
    const int64_t w = plan.selection.chunk_tokens;
    return (num_in_kv + num_tokens) / w - num_in_kv / w;
  }
  int32_t token(int64_t position) const { return (*tokens)[position - tokens_begin]; }
};

}  // namespace folio
