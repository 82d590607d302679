#include "engine/kv/kv_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

void AddRefs(Frames* pool, const std::vector<FrameId>& frames) {
  for (FrameId id : frames) pool->AddRef(id, true);
}

void ReleaseAll(Frames* pool, std::vector<FrameId>* frames) {
  for (FrameId id : *frames) pool->Release(id, true);
  frames->clear();
}

// Tokens whose pages are complete together.
int64_t SealedTogether(const AttentionPlan& plan, int64_t page_tokens) {
  return plan.selection.enabled() ? plan.selection.chunk_tokens : page_tokens;
}

}  // namespace

int64_t KvStore::Charge(const Needs& needs) const {
  const int64_t summary_bytes = needs.summaries * summaries_->frame_bytes();
  const bool own_pool = num_summary_frames_ > 0;
  // What is not a page that may leave memory.
  const int64_t beside = needs.open_pages * open_bytes() + needs.frames * frames_->frame_bytes() +
                         (own_pool ? 0 : summary_bytes);
  int64_t bytes = needs.pages * page_bytes_ + beside;
  if (tiered()) {
    const int64_t held = needs.kept_pages * page_bytes_ + beside;
    const double share =
        static_cast<double>(capacity_bytes_) / static_cast<double>(holdable_bytes_);
    bytes = std::max(needs.pages * page_bytes_,
                     static_cast<int64_t>(std::ceil(static_cast<double>(held) * share)));
  }
  if (!own_pool) return bytes;
  return std::max(bytes, needs.summaries * (capacity_bytes_ / num_summary_frames_ + 1));
}

// What completes pages that several sequences share writes them anew, each for itself.
int64_t KvStore::NumSharedPages(const AttentionPlan& plan, int64_t shared_tokens,
                                int64_t total_tokens) const {
  const int page = geometry_.page_tokens;
  const int64_t open = FirstOpenToken(plan, page, shared_tokens);
  const bool completes = seals() && FirstOpenToken(plan, page, total_tokens) > open;
  return (completes ? open : shared_tokens) / page;
}

int64_t KvStore::BytesNeeded(const AttentionPlan& plan, int64_t total_tokens, int64_t step_tokens,
                             int64_t shared_tokens) const {
  const int64_t page = geometry_.page_tokens;
  Needs needs;
  needs.pages = CeilDiv(total_tokens, page) - NumSharedPages(plan, shared_tokens, total_tokens);
  // Those of the unfinished chunk, and the one behind it that a step has begun.
  needs.open_pages = std::min(needs.pages, CeilDiv(SealedTogether(plan, page), page) + 1);
  needs.kept_pages = needs.open_pages;
  if (plan.retention.window_tokens != kUnbounded) {
    const int64_t window = plan.retention.window_tokens - 1 + step_tokens;
    needs.pages = std::min(needs.pages, CeilDiv(window, page) + 1);
    needs.kept_pages = needs.pages;
  }
  needs.frames = CeilDiv(std::min<int64_t>(plan.retention.num_sinks, total_tokens), page);
  if (!plan.selection.enabled()) return Charge(needs);
  const int64_t chunk = plan.selection.chunk_tokens;
  if (NeedsQueries(plan.selection.scorer)) {
    needs.frames += pending_rows_.NumFrames(std::min(chunk, total_tokens));
  }
  const SummaryLayout summaries = SummaryLayoutOf(plan.selection, geometry_.group_size());
  needs.summaries =
      summaries.NumFrames(total_tokens / chunk) - summaries.FirstOpenFrame(shared_tokens / chunk);
  return Charge(needs);
}

bool KvStore::Reserve(int64_t bytes) {
  if (reserved_bytes_ + bytes > capacity_bytes_) return false;
  reserved_bytes_ += bytes;
  return true;
}

void KvStore::Unreserve(int64_t bytes) { reserved_bytes_ -= bytes; }

absl::Status KvStore::WhyFull() const {
  if (tiered_ != nullptr && !tiered_->home_error().ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pages that cannot be written to disk fill the memory: ", tiered_->home_error().message()));
  }
  return absl::ResourceExhaustedError("the KV pool is out of frames although they were reserved");
}

absl::Status KvStore::GrowPrivate(Frames* pool, int64_t count, int64_t first_written,
                                  std::vector<FrameId>* frames) {
  const int64_t old_count = static_cast<int64_t>(frames->size());
  for (int64_t i = std::max<int64_t>(0, first_written); i < old_count; ++i) {
    FrameId& frame = (*frames)[i];
    if (!pool->IsShared(frame)) continue;
    const FrameId copy = pool->Allocate();
    if (copy == kNoFrame) return WhyFull();
    pool->Copy(frame, copy);
    pool->Release(frame, true);
    frame = copy;
  }
  // First, so that no frame is taken that finds no place.
  if (count > static_cast<int64_t>(frames->capacity())) {
    frames->reserve(std::max(count, 2 * old_count));
  }
  while (static_cast<int64_t>(frames->size()) < count) {
    const FrameId frame = pool->Allocate();
    if (frame == kNoFrame) return WhyFull();
    frames->push_back(frame);
  }
  return absl::OkStatus();
}

absl::Status KvStore::Extend(const AttentionPlan& plan, int64_t num_tokens, int64_t num_new,
                             SequenceKv* kv) {
  const int64_t page = geometry_.page_tokens;
  const int64_t total = num_tokens + num_new;
  kv->is_window = plan.retention.window_tokens != kUnbounded;
  FOLIO_RETURN_IF_ERROR(ExtendFrames(plan, num_tokens, num_new, kv));
  const int64_t first_written = NumSharedPages(plan, num_tokens, total) - kv->first_page;
  const int64_t num_pages = CeilDiv(total, page) - kv->first_page;
  // First: pages find what those have left of the memory.
  FitSlots((num_pages - std::max<int64_t>(0, first_written)) * open_bytes());
  FOLIO_RETURN_IF_ERROR(GrowPrivate(pages_, num_pages, first_written, &kv->pages));
  kv->num_shared_pages = std::min(kv->num_shared_pages, first_written);
  return absl::OkStatus();
}

absl::Status KvStore::ExtendFrames(const AttentionPlan& plan, int64_t num_tokens, int64_t num_new,
                                   SequenceKv* kv) {
  const int64_t page = geometry_.page_tokens;
  const int64_t total = num_tokens + num_new;
  const int64_t num_sinks = std::min<int64_t>(plan.retention.num_sinks, total);
  FOLIO_RETURN_IF_ERROR(
      GrowPrivate(frames_.get(), CeilDiv(num_sinks, page), num_tokens / page, &kv->sinks));
  if (!plan.selection.enabled()) return absl::OkStatus();
  const int64_t chunk = plan.selection.chunk_tokens;
  if (NeedsQueries(plan.selection.scorer)) {
    // A chunk that begins in this step is written from its first token on.
    const int64_t first_token = num_tokens / chunk == total / chunk ? num_tokens % chunk : 0;
    FOLIO_RETURN_IF_ERROR(GrowPrivate(frames_.get(),
                                      pending_rows_.NumFrames(std::min(chunk, total)),
                                      pending_rows_.FrameOf(first_token), &kv->pending_queries));
  }
  const SummaryLayout summaries = SummaryLayoutOf(plan.selection, geometry_.group_size());
  return GrowPrivate(summaries_.get(), summaries.NumFrames(total / chunk),
                     summaries.FirstOpenFrame(num_tokens / chunk), &kv->summaries);
}

void KvStore::FitSlots(int64_t frame_bytes) {
  if (tiered_ == nullptr) return;
  const int64_t held = frames_->used_bytes() + summaries_->used_bytes() + frame_bytes;
  bool tried = false;
  do {
    slots_->SetLimit((memory_bytes_ - held) / slots_->slot_bytes());
  } while (slots_->used_slots() > slots_->limit() && tiered_->AwaitSlot(&tried));
}

CacheLayout KvStore::LayoutOf(const AttentionPlan& plan, int64_t num_tokens) const {
  const int64_t page = geometry_.page_tokens;
  CacheLayout layout;
  layout.page_tokens = geometry_.page_tokens;
  layout.end_page = CeilDiv(num_tokens, page);
  const bool is_window = plan.retention.window_tokens != kUnbounded;
  if (is_window) {
    layout.first_page = std::max<int64_t>(0, num_tokens - plan.retention.window_tokens + 1) / page;
  }
  layout.open_page = is_window && !seals()
                         ? layout.first_page
                         : FirstOpenToken(plan, geometry_.page_tokens, num_tokens) / page;
  layout.home_page = is_window ? layout.first_page : layout.open_page;
  layout.num_sinks = CeilDiv(std::min<int64_t>(plan.retention.num_sinks, num_tokens), page);
  if (!plan.selection.enabled()) return layout;
  const int64_t chunk = plan.selection.chunk_tokens;
  if (NeedsQueries(plan.selection.scorer)) {
    layout.num_pending_queries = pending_rows_.NumFrames(std::min(chunk, num_tokens));
  }
  const SummaryLayout summaries = SummaryLayoutOf(plan.selection, geometry_.group_size());
  layout.num_summaries = summaries.NumFrames(num_tokens / chunk);
  layout.open_summary = summaries.FirstOpenFrame(num_tokens / chunk);
  layout.summary_vectors = summaries.vectors;
  layout.summary_tokens = chunk * summaries.ChunksPerFrame();
  return layout;
}

absl::Status KvStore::Restore(const AttentionPlan& plan, int64_t num_tokens, AdoptPage adopt,
                              SequenceKv* kv) {
  const CacheLayout layout = LayoutOf(plan, num_tokens);
  absl::Cleanup give_back = [&] { Release(kv); };
  kv->is_window = plan.retention.window_tokens != kUnbounded;
  kv->pages.reserve(layout.end_page - layout.first_page);
  kv->first_page = kv->open_page = layout.first_page;
  for (; kv->open_page < layout.home_page; ++kv->open_page) {
    const FrameId frame =
        hosted_ != nullptr ? hosted_->AllocateAtHome() : tiered_->AllocateAtHome();
    if (frame == kNoFrame) return WhyFull();
    kv->pages.push_back(frame);
    adopt(frame, kv->open_page);
  }
  FOLIO_RETURN_IF_ERROR(GrowPrivate(frames_.get(), layout.num_sinks, layout.num_sinks, &kv->sinks));
  FOLIO_RETURN_IF_ERROR(GrowPrivate(frames_.get(), layout.num_pending_queries,
                                    layout.num_pending_queries, &kv->pending_queries));
  FOLIO_RETURN_IF_ERROR(
      GrowPrivate(summaries_.get(), layout.num_summaries, layout.num_summaries, &kv->summaries));
  FitSlots((layout.end_page - layout.open_page + 1) * open_bytes());
  for (; kv->open_page < layout.open_page; ++kv->open_page) {
    const FrameId frame = sealing_->Allocate();
    if (frame == kNoFrame) return WhyFull();
    sealing_->Complete(frame);
    kv->pages.push_back(frame);
  }
  const int64_t num_pages = layout.end_page - layout.first_page;
  FOLIO_RETURN_IF_ERROR(GrowPrivate(pages_, num_pages, num_pages, &kv->pages));
  std::move(give_back).Cancel();
  return absl::OkStatus();
}

// A window's pages are few, and gone before they would be read again: they stay in memory.
void KvStore::Seal(const AttentionPlan& plan, int64_t num_tokens, SequenceKv* kv) {
  if (!seals() && (!tiered() || kv->is_window)) return;
  const int64_t end = LayoutOf(plan, num_tokens).open_page;
  if (kv->open_page >= end) return;
  if (kv->is_window) {
    for (; kv->open_page < end; ++kv->open_page) {
      sealing_->Complete(kv->pages[kv->open_page - kv->first_page]);
    }
    return;
  }
  if (kv->run == 0) kv->run = ++next_run_;
  if (tiered_ != nullptr) tiered_->SetRun(kv->run);
  for (; kv->open_page < end; ++kv->open_page) {
    pages_->Seal(kv->pages[kv->open_page - kv->first_page]);
  }
}

void KvStore::EndStep() {
  if (tiered_ == nullptr) return;
  mover_->EndStep();
  NoteWritten();
}

bool KvStore::HasLostPages(const SequenceKv& kv) const {
  if (!has_lost_pages()) return false;
  return std::any_of(kv.pages.begin(), kv.pages.end(),
                     [&](FrameId id) { return tiered_->IsLost(id); });
}

void KvStore::Trim(const AttentionPlan& plan, int64_t next_position, SequenceKv* kv) {
  if (plan.retention.window_tokens == kUnbounded) return;
  const int64_t first_token =
      std::max<int64_t>(0, next_position - plan.retention.window_tokens + 1);
  const int64_t keep_from = first_token / geometry_.page_tokens;
  const int64_t num_drop =
      std::min<int64_t>(keep_from - kv->first_page, static_cast<int64_t>(kv->pages.size()));
  if (num_drop <= 0) return;
  for (int64_t i = 0; i < num_drop; ++i) {
    pages_->Release(kv->pages[i], kv->first_page + i >= kv->open_page);
  }
  kv->pages.erase(kv->pages.begin(), kv->pages.begin() + num_drop);
  kv->first_page += num_drop;
  kv->open_page = std::max(kv->open_page, kv->first_page);
  kv->num_shared_pages = std::max<int64_t>(0, kv->num_shared_pages - num_drop);
}

SequenceKv KvStore::Fork(const SequenceKv& kv) {
  SequenceKv fork = kv;
  fork.run = 0;
  int64_t page = kv.first_page;
  for (const FrameId id : kv.pages) pages_->AddRef(id, page++ >= kv.open_page);
  AddRefs(frames_.get(), kv.sinks);
  AddRefs(frames_.get(), kv.pending_queries);
  AddRefs(summaries_.get(), kv.summaries);
  fork.num_shared_pages = static_cast<int64_t>(kv.pages.size());
  return fork;
}

void KvStore::Release(SequenceKv* kv) {
  int64_t page = kv->first_page;
  for (const FrameId id : kv->pages) pages_->Release(id, page++ >= kv->open_page);
  ReleaseAll(frames_.get(), &kv->sinks);
  ReleaseAll(frames_.get(), &kv->pending_queries);
  ReleaseAll(summaries_.get(), &kv->summaries);
  *kv = SequenceKv{};
  FitSlots();
}

SliceMemory KvStore::page_memory() const {
  if (tiered_ == nullptr) {
    const FramePool& pool = seals() ? *sealed_ : *frames_;
    return {.base = pool.memory().base,
            .frame_bytes = pool.frame_bytes(),
            .slice_bytes = geometry_.sealed_slice_bytes()};
  }
  return {.base = slots_->base(),
          .slice_bytes = slots_->slot_bytes(),
          .slots = slots_->table(),
          .slices_per_frame = geometry_.num_slices()};
}

}  // namespace folio
