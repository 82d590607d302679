#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/frame_pool.h"
#include "engine/types/attention_plan.h"
#include "engine/types/kv_types.h"

namespace folio {

// Where the cache of one sequence lies: the page table. Plain data; only KvStore changes it.
struct SequenceKv {
  int64_t first_page = 0;  // logical index of pages[0]
  std::vector<FrameId> pages;
  // The first so many of `pages` belong to the sequence that this one was forked from.
  int64_t num_shared_pages = 0;
  std::vector<FrameId> sinks;
  std::vector<FrameId> summaries;
  // Of the page pool: queries that wait for their chunk to complete.
  std::vector<FrameId> pending_queries;
};

// Owns the frames of the KV cache and of the chunk summaries, under one byte budget that is
// reserved before it is used: the frames of what was admitted are there. Pages, sinks and pending
// queries are frames of one pool, summaries of another; nothing of a sequence lies outside of them.
// The only place where frames are allocated, shared, copied and freed. Engine thread only, except
// the const functions of the geometry.
class KvStore {
 public:
  // Errors: INVALID_ARGUMENT if the budget holds not even one page, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvGeometry& geometry,
                                                         int64_t capacity_bytes, Memory* memory);

  // Bytes of the pool of chunk summaries beside pages of capacity_bytes.
  static int64_t SummaryPoolBytes(const KvGeometry& geometry, int64_t capacity_bytes,
                                  bool commits_at_once);

  // The part of the budget that a sequence of `total_tokens` under `plan` needs, if a step adds at
  // most `step_tokens` and the first `shared_tokens` lie in frames of another sequence: the largest
  // number of bytes that it ever holds or, where both pools have a fixed size, its share of the one
  // that it takes more of, so that neither runs out before the budget does.
  int64_t BytesNeeded(const AttentionPlan& plan, int64_t total_tokens, int64_t step_tokens,
                      int64_t shared_tokens) const;

  // Sets bytes of the budget aside; false if they are not there.
  bool Reserve(int64_t bytes);
  void Unreserve(int64_t bytes);

  // Makes room for tokens [num_tokens, num_tokens + num_new): allocates frames, and copies a shared
  // frame that is about to be written. REQUIRES: reserved bytes that cover the growth.
  absl::Status Extend(const AttentionPlan& plan, int64_t num_tokens, int64_t num_new,
                      SequenceKv* kv);

  // Frees pages that no query at `next_position` or later can see.
  void Trim(const AttentionPlan& plan, int64_t next_position, SequenceKv* kv);

  // A second page table over the same frames.
  SequenceKv Fork(const SequenceKv& kv);

  // Frees everything; `kv` is empty afterwards.
  void Release(SequenceKv* kv);

  // Bytes of pages and sinks of a sequence: its own, and those of the sequence it was forked from.
  int64_t OwnPageBytes(const SequenceKv& kv) const;
  int64_t SharedPageBytes(const SequenceKv& kv) const;
  // Bytes of chunk summaries and of queries waiting for their chunk to complete.
  int64_t SummaryBytes(const SequenceKv& kv) const;

  const KvGeometry& geometry() const { return geometry_; }
  FrameMemory kv_memory() const { return pages_->memory(); }
  FrameMemory summary_memory() const { return summaries_->memory(); }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }
  int64_t used_page_bytes() const { return pages_->used_bytes(); }
  int64_t used_summary_bytes() const { return summaries_->used_bytes(); }

 private:
  KvStore(const KvGeometry& geometry, int64_t capacity_bytes, int64_t num_summary_frames,
          std::unique_ptr<FramePool> pages, std::unique_ptr<FramePool> summaries);

  // Grows `frames` to `count` entries and makes those from `first_written` on private.
  absl::Status GrowPrivate(FramePool* pool, int64_t count, int64_t first_written,
                           std::vector<FrameId>* frames);
  // What frames of both pools count against the budget.
  int64_t Charge(int64_t num_pages, int64_t num_summaries) const;

  const KvGeometry geometry_;
  const PendingRows pending_rows_;
  const int64_t capacity_bytes_;
  // 0: summaries share the budget of the pages, else they have a pool of this many frames.
  const int64_t num_summary_frames_;
  int64_t reserved_bytes_ = 0;
  std::unique_ptr<FramePool> pages_;
  std::unique_ptr<FramePool> summaries_;
};

}  // namespace folio
