#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/frame_pool.h"
#include "engine/kv/hosted_pages.h"
#include "engine/kv/page_home.h"
#include "engine/kv/sealing_pages.h"
#include "engine/kv/slot_cache.h"
#include "engine/kv/tier_mover.h"
#include "engine/kv/tiered_pages.h"
#include "engine/types/attention_plan.h"
#include "engine/types/kv_types.h"

namespace folio {

// Where the cache of one sequence lies: the page table. Plain data; only KvStore changes it.
struct SequenceKv {
  int64_t first_page = 0;  // logical index of pages[0]
  std::vector<FrameId> pages;
  // Pages are those of a bounded window: they never leave memory.
  bool is_window = false;
  // Pages from this one on are open: written, or read otherwise than by attention.
  int64_t open_page = 0;
  // Of the home of pages: they follow each other there.
  uint64_t run = 0;
  // The first so many of `pages` belong to the sequence that this one was forked from.
  int64_t num_shared_pages = 0;
  std::vector<FrameId> sinks;
  std::vector<FrameId> summaries;
  // Frames with queries that wait for their chunk to complete.
  std::vector<FrameId> pending_queries;
};

// Which frames a sequence has whose first so many tokens are in the cache.
struct CacheLayout {
  int page_tokens = 0;
  // Pages [first_page, open_page) are sealed, [open_page, end_page) open. Those before home_page
  // may leave memory.
  int64_t first_page = 0;
  int64_t home_page = 0;
  int64_t open_page = 0;
  int64_t end_page = 0;
  int64_t num_sinks = 0;
  int64_t num_pending_queries = 0;
  int64_t num_summaries = 0;
  // Frames of summaries before open_summary never change. Each summary_vectors of them that follow
  // each other hold the summaries of summary_tokens tokens.
  int64_t open_summary = 0;
  int summary_vectors = 0;
  int64_t summary_tokens = 0;

  bool operator==(const CacheLayout&) const = default;
};

// What a sequence takes of the cache.
struct KvFootprint {
  // Of its own: pages that stay in memory, with the sinks; and those that lie in the second tier,
  // which is one of the two.
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  // Pages of the sequence that it was forked from.
  int64_t shared_bytes = 0;
  // Chunk summaries, and queries that wait for their chunk to complete.
  int64_t summary_bytes = 0;

  bool operator==(const KvFootprint&) const = default;
};

// A second tier, for pages: files below the memory of the host, or the memory of the host below
// that of a device. Borrowed; at most one of them.
struct KvTiers {
  PageHome* home = nullptr;
  HostTier* host = nullptr;
  int64_t home_bytes = 0;
  // Rows of a step, at most; to be said also where there is no tier, but pages are sealed.
  int step_tokens = 0;
};

// Owns the frames of the KV cache and of the chunk summaries, under one byte budget that is
// reserved before it is used: the frames of what was admitted are there. Pages, sinks and pending
// queries are frames of one pool, summaries of another; nothing of a sequence lies outside of them.
// With a second tier pages lie there, and in memory as far as its budget goes beside what cannot
// leave it: on a device, one part of the budget is for what stays, the other for the device's cache
// of slices. Where complete pages are integers they are frames of a third pool, or slices of their
// own size. The only place where frames are allocated, shared, copied and freed. Engine thread
// only, except the const functions of the geometry.
class KvStore {
 public:
  // Errors: INVALID_ARGUMENT if a budget holds not even one page, or one step, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvGeometry& geometry,
                                                         int64_t memory_bytes, Memory* memory,
                                                         const KvTiers& tiers = {});

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

  CacheLayout LayoutOf(const AttentionPlan& plan, int64_t num_tokens) const;
  // The frames of num_tokens tokens that were computed before: of sealed pages `adopt` says where
  // the home has them, the rest is in memory, to be filled by the caller, as are sealed pages where
  // the home is the host's memory. Errors: RESOURCE_EXHAUSTED, and `kv` is empty. REQUIRES: a
  // second tier; `kv` is empty; reserved bytes.
  using AdoptPage = absl::FunctionRef<void(FrameId frame, int64_t page)>;
  absl::Status Restore(const AttentionPlan& plan, int64_t num_tokens, AdoptPage adopt,
                       SequenceKv* kv);

  // Tokens before num_tokens are in the cache: pages that are complete may leave memory.
  void Seal(const AttentionPlan& plan, int64_t num_tokens, SequenceKv* kv);
  // The step is finished: what it brought into memory may leave again. To be called after each
  // step, before anything else.
  void EndStep();
  // Which pages have come home, or could not; EndStep notes it, too.
  void NoteWritten() {
    if (tiered_ != nullptr) tiered_->NoteWritten(false);
  }
  bool has_lost_pages() const { return tiered_ != nullptr && tiered_->num_lost() > 0; }
  // Whether a page of the sequence can no longer be read. What was computed from it means nothing.
  bool HasLostPages(const SequenceKv& kv) const;

  // Whether the file home has the page, or memory alone a page that is sealed; while it is being
  // written neither is so. False where pages do not go to files.
  bool IsHome(FrameId id) const { return tiered_ != nullptr && tiered_->IsHome(id); }
  bool IsOnlyInMemory(FrameId id) const {
    return tiered_ != nullptr && tiered_->IsOnlyInMemory(id);
  }
  // Why pages are only in memory, if the home has refused any.
  absl::Status home_error() const {
    return tiered_ == nullptr ? absl::OkStatus() : tiered_->home_error();
  }

  // Frees pages that no query at `next_position` or later can see.
  void Trim(const AttentionPlan& plan, int64_t next_position, SequenceKv* kv);

  // A second page table over the same frames.
  SequenceKv Fork(const SequenceKv& kv);

  // Frees everything; `kv` is empty afterwards.
  void Release(SequenceKv* kv);

  KvFootprint FootprintOf(const SequenceKv& kv) const;
  // The most of each that a sequence has after a step, if each step computes as much of its prompt
  // as it can. Any thread.
  struct Growth {
    int64_t shared_tokens = 0;  // came with the fork
    int64_t prompt_tokens = 0;  // with these
    int64_t total_tokens = 0;
    int64_t step_tokens = 0;
  };
  KvFootprint LargestFootprint(const AttentionPlan& plan, const Growth& growth) const;

  const KvGeometry& geometry() const { return geometry_; }
  SliceMemory page_memory() const;
  FrameMemory frame_memory() const { return frames_->memory(); }
  // HostedPages::places, or SealingPages::open_frames; null: each page lies in the frame of its
  // number.
  const FrameId* page_places() const {
    if (sealing_ != nullptr) return sealing_->open_frames();
    return hosted_ ? hosted_->places() : nullptr;
  }
  // Whether complete pages are integers, and open ones in frames of their own.
  bool seals() const { return sealing_ != nullptr; }
  // The frame of an open page. REQUIRES: seals().
  FrameId OpenFrameOf(FrameId page) const { return sealing_->open_frames()[page]; }
  // Null: the home is not the host's memory.
  HostTier* host_tier() const { return host_tier_; }
  // Where frames and pages lie that have not left it.
  Memory* memory() const { return memory_; }
  // Null: all pages are in memory, or the device brings slices by itself.
  SliceSource* slices() { return mover_.get(); }
  // Where pages go that leave memory: kDevice if they do not.
  Tier home() const;
  bool tiered() const { return home() != Tier::kDevice; }
  // Of all steps, and of one sequence in the step that was finished last.
  SliceReads reads() const;
  SliceReads ReadsOf(int reader) const;
  int64_t memory_bytes() const { return memory_bytes_; }
  FrameMemory summary_memory() const { return summaries_->memory(); }
  // What Reserve can give: of memory or, with a second tier, of that.
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }
  // In memory.
  int64_t used_page_bytes() const;
  // In the second tier.
  int64_t used_home_bytes() const;
  int64_t used_summary_bytes() const { return summaries_->used_bytes(); }

 private:
  KvStore(const KvGeometry& geometry, int64_t memory_bytes)
      : geometry_(geometry),
        pending_rows_(geometry),
        memory_bytes_(memory_bytes),
        capacity_bytes_(memory_bytes) {}
  // Frames take frame_bytes; summaries stand for pages of paged_bytes.
  absl::Status CreatePools(Memory* memory, int64_t frame_bytes, int64_t paged_bytes);
  absl::Status CreateSealed(Memory* memory, int step_tokens);
  absl::Status CreateTiers(Memory* memory, const KvTiers& tiers);
  absl::Status CreateHosted(Memory* memory, const KvTiers& tiers);

  // RESOURCE_EXHAUSTED: there is no frame, and why.
  absl::Status WhyFull() const;
  // Grows `frames` to `count` entries and makes those from `first_written` on private.
  absl::Status GrowPrivate(Frames* pool, int64_t count, int64_t first_written,
                           std::vector<FrameId>* frames);
  struct FrameCounts {
    int64_t pages = 0;
    int64_t shared_pages = 0;  // the first of them
    int64_t sealed_pages = 0;
    int64_t home_pages = 0;
    int64_t sinks = 0;
    int64_t summaries = 0;
    int64_t pending_queries = 0;
  };
  KvFootprint FootprintOf(const FrameCounts& frames) const;
  // Of a sequence whose first so many tokens are in the cache.
  KvFootprint FootprintAt(const AttentionPlan& plan, int64_t num_tokens,
                          int64_t shared_tokens) const;
  // Extend, of all but the pages.
  absl::Status ExtendFrames(const AttentionPlan& plan, int64_t num_tokens, int64_t num_new,
                            SequenceKv* kv);
  // Frames that a sequence holds at once.
  struct Needs {
    int64_t pages = 0;
    int64_t kept_pages = 0;  // of them those that cannot leave memory
    int64_t open_pages = 0;  // and those that are open
    int64_t frames = 0;      // sinks, pending queries
    int64_t summaries = 0;
  };
  // What they count against the budget.
  int64_t Charge(const Needs& needs) const;
  // What an open page takes beside its place among the sealed ones.
  int64_t open_bytes() const { return geometry_.sealed_bits == 0 ? 0 : frames_->frame_bytes(); }
  // Pages that a sequence of total_tokens has in common with that of its first shared_tokens.
  int64_t NumSharedPages(const AttentionPlan& plan, int64_t shared_tokens,
                         int64_t total_tokens) const;
  // Slots get what is left of the memory, and of frames that will be taken before the next call.
  void FitSlots(int64_t frame_bytes = 0);

  const KvGeometry geometry_;
  const PendingRows pending_rows_;
  const int64_t memory_bytes_;
  Memory* memory_ = nullptr;
  int64_t capacity_bytes_;
  // Tiers: of memory_bytes_ what sequences can hold beside what a step of all of them needs.
  int64_t holdable_bytes_ = 0;
  // 0: summaries share the budget of the pages, else they have a pool of this many frames.
  int64_t num_summary_frames_ = 0;
  int64_t page_bytes_ = 0;
  int64_t reserved_bytes_ = 0;
  uint64_t next_run_ = 0;
  std::unique_ptr<FramePool> frames_;
  std::unique_ptr<FramePool> summaries_;
  std::unique_ptr<SlotCache> slots_;
  std::unique_ptr<TieredPages> tiered_;
  std::unique_ptr<TierMover> mover_;
  HostTier* host_tier_ = nullptr;
  std::unique_ptr<HostedPages> hosted_;
  std::unique_ptr<FramePool> sealed_;
  std::unique_ptr<SealingPages> sealing_;
  Frames* pages_ = nullptr;  // sealing_, tiered_, hosted_ or frames_
};

}  // namespace folio
