// What sequences and pools take of the cache.
#include <algorithm>

#include "engine/kv/kv_store.h"

namespace folio {

int64_t KvStore::used_page_bytes() const {
  return frames_->used_bytes() + (sealed_ ? sealed_->used_bytes() : 0) +
         (slots_ ? slots_->used_slots() * slots_->slot_bytes() : 0);
}

int64_t KvStore::used_home_bytes() const {
  if (hosted_ != nullptr) return hosted_->home_pages() * page_bytes_;
  return tiered_ != nullptr ? tiered_->home_frames() * page_bytes_ : 0;
}

Tier KvStore::home() const {
  if (hosted_ != nullptr) return Tier::kHost;
  return tiered_ != nullptr ? Tier::kDisk : Tier::kDevice;
}

SliceReads KvStore::reads() const {
  if (hosted_ != nullptr) return host_tier_->counts();
  return mover_ != nullptr ? mover_->counts() : SliceReads{};
}

SliceReads KvStore::ReadsOf(int reader) const {
  if (hosted_ != nullptr) return host_tier_->CountsOf(reader);
  return mover_ != nullptr ? mover_->CountsOf(reader) : SliceReads{};
}

KvFootprint KvStore::FootprintOf(const FrameCounts& frames) const {
  const int64_t num_own = frames.pages - frames.shared_pages;
  const int64_t num_home =
      tiered() ? std::clamp<int64_t>(frames.home_pages - frames.shared_pages, 0, num_own) : 0;
  const int64_t home_bytes = num_home * page_bytes_;
  const int64_t num_open = frames.pages - std::max(frames.shared_pages, frames.sealed_pages);
  return {.device_bytes = (num_own - num_home) * page_bytes_ + num_open * open_bytes() +
                          frames.sinks * frames_->frame_bytes(),
          .host_bytes = hosted_ != nullptr ? home_bytes : 0,
          .disk_bytes = tiered_ != nullptr ? home_bytes : 0,
          .shared_bytes = frames.shared_pages * page_bytes_,
          .summary_bytes = frames.summaries * summaries_->frame_bytes() +
                           frames.pending_queries * frames_->frame_bytes()};
}

KvFootprint KvStore::FootprintOf(const SequenceKv& kv) const {
  const int64_t num_sealed = kv.open_page - kv.first_page;
  return FootprintOf(FrameCounts{.pages = std::ssize(kv.pages),
                                 .shared_pages = kv.num_shared_pages,
                                 .sealed_pages = num_sealed,
                                 .home_pages = kv.is_window ? 0 : num_sealed,
                                 .sinks = std::ssize(kv.sinks),
                                 .summaries = std::ssize(kv.summaries),
                                 .pending_queries = std::ssize(kv.pending_queries)});
}

KvFootprint KvStore::FootprintAt(const AttentionPlan& plan, int64_t num_tokens,
                                 int64_t shared_tokens) const {
  const CacheLayout layout = LayoutOf(plan, num_tokens);
  const int64_t num_pages = layout.end_page - layout.first_page;
  // The page in which the fork goes on is its own.
  const int64_t num_shared = NumSharedPages(plan, shared_tokens, num_tokens) - layout.first_page;
  return FootprintOf(FrameCounts{.pages = num_pages,
                                 .shared_pages = std::clamp<int64_t>(num_shared, 0, num_pages),
                                 .sealed_pages = layout.open_page - layout.first_page,
                                 .home_pages = layout.home_page - layout.first_page,
                                 .sinks = layout.num_sinks,
                                 .summaries = layout.num_summaries,
                                 .pending_queries = layout.num_pending_queries});
}

KvFootprint KvStore::LargestFootprint(const AttentionPlan& plan, const Growth& growth) const {
  KvFootprint largest;
  const auto add = [&](int64_t num_tokens) {
    const KvFootprint at = FootprintAt(plan, num_tokens, growth.shared_tokens);
    largest.device_bytes = std::max(largest.device_bytes, at.device_bytes);
    largest.host_bytes = std::max(largest.host_bytes, at.host_bytes);
    largest.disk_bytes = std::max(largest.disk_bytes, at.disk_bytes);
    largest.shared_bytes = std::max(largest.shared_bytes, at.shared_bytes);
    largest.summary_bytes = std::max(largest.summary_bytes, at.summary_bytes);
  };
  for (int64_t n = growth.shared_tokens; n < growth.prompt_tokens;) {
    n = std::min(n + growth.step_tokens, growth.prompt_tokens);
    add(n);
  }
  // Pages of a window or of an unfinished chunk come and go, the rest grows.
  const int64_t chunk = plan.selection.enabled() ? plan.selection.chunk_tokens : 0;
  const int64_t period = std::max<int64_t>(chunk, geometry_.page_tokens);
  const int64_t first = std::max(growth.prompt_tokens, growth.total_tokens - 2 * period);
  for (int64_t n = first; n <= growth.total_tokens; ++n) add(n);
  return largest;
}

}  // namespace folio
