#include "engine/kv/kv_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Summary frames that short sequences may hold beside the bound of long ones.
constexpr int64_t kPartialSummaries = 128;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

void AddRefs(FramePool* pool, const std::vector<FrameId>& frames) {
  for (FrameId id : frames) pool->AddRef(id);
}

void ReleaseAll(FramePool* pool, std::vector<FrameId>* frames) {
  for (FrameId id : *frames) pool->Release(id);
  frames->clear();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvGeometry& geometry,
                                                         int64_t capacity_bytes, Memory* memory) {
  const int64_t page_bytes = FramePool::RoundedBytes(geometry.frame_bytes());
  if (capacity_bytes < page_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the KV budget of ", capacity_bytes,
                                                   " bytes is smaller than one page of ",
                                                   page_bytes, " bytes; raise --kv-bytes"));
  }
  FOLIO_ASSIGN_OR_RETURN(
      auto pages, FramePool::Create(memory, geometry.frame_bytes(), capacity_bytes / page_bytes));
  const int64_t num_summaries =
      SummaryPoolBytes(geometry, capacity_bytes, memory->commits_at_once()) /
      FramePool::RoundedBytes(geometry.summary_frame_bytes());
  FOLIO_ASSIGN_OR_RETURN(auto summaries,
                         FramePool::Create(memory, geometry.summary_frame_bytes(), num_summaries));
  return std::unique_ptr<KvStore>(new KvStore(geometry, capacity_bytes,
                                              memory->commits_at_once() ? num_summaries : 0,
                                              std::move(pages), std::move(summaries)));
}

int64_t KvStore::SummaryPoolBytes(const KvGeometry& geometry, int64_t capacity_bytes,
                                  bool commits_at_once) {
  const int64_t frame_bytes = FramePool::RoundedBytes(geometry.summary_frame_bytes());
  int64_t count = std::max<int64_t>(1, capacity_bytes / frame_bytes);
  if (commits_at_once) {
    // A frame stands for at least kTile pages, the last one of a sequence apart.
    const int64_t num_pages = capacity_bytes / FramePool::RoundedBytes(geometry.frame_bytes());
    count = std::min(count, 2 * num_pages / kTile + kPartialSummaries);
  }
  return count * frame_bytes;
}

KvStore::KvStore(const KvGeometry& geometry, int64_t capacity_bytes, int64_t num_summary_frames,
                 std::unique_ptr<FramePool> pages, std::unique_ptr<FramePool> summaries)
    : geometry_(geometry),
      pending_rows_(geometry),
      capacity_bytes_(capacity_bytes),
      num_summary_frames_(num_summary_frames),
      pages_(std::move(pages)),
      summaries_(std::move(summaries)) {}

int64_t KvStore::Charge(int64_t num_pages, int64_t num_summaries) const {
  const int64_t page_bytes = num_pages * pages_->frame_bytes();
  if (num_summary_frames_ == 0) return page_bytes + num_summaries * summaries_->frame_bytes();
  const int64_t share = capacity_bytes_ / num_summary_frames_ + 1;
  return std::max(page_bytes, num_summaries * share);
}

int64_t KvStore::BytesNeeded(const AttentionPlan& plan, int64_t total_tokens, int64_t step_tokens,
                             int64_t shared_tokens) const {
  const int64_t page = geometry_.page_tokens;
  int64_t num_pages = CeilDiv(total_tokens, page) - shared_tokens / page;
  if (plan.retention.window_tokens != kUnbounded) {
    const int64_t window = plan.retention.window_tokens - 1 + step_tokens;
    num_pages = std::min(num_pages, CeilDiv(window, page) + 1);
  }
  num_pages += CeilDiv(std::min<int64_t>(plan.retention.num_sinks, total_tokens), page);
  if (!plan.selection.enabled()) return Charge(num_pages, 0);
  const int64_t chunk = plan.selection.chunk_tokens;
  if (NeedsQueries(plan.selection.scorer)) {
    num_pages += pending_rows_.NumFrames(std::min(chunk, total_tokens));
  }
  const int64_t tiles = CeilDiv(total_tokens / chunk, kTile) - shared_tokens / chunk / kTile;
  return Charge(num_pages, tiles * FramesPerSummaryTile(plan.selection));
}

bool KvStore::Reserve(int64_t bytes) {
  if (reserved_bytes_ + bytes > capacity_bytes_) return false;
  reserved_bytes_ += bytes;
  return true;
}

void KvStore::Unreserve(int64_t bytes) { reserved_bytes_ -= bytes; }

absl::Status KvStore::GrowPrivate(FramePool* pool, int64_t count, int64_t first_written,
                                  std::vector<FrameId>* frames) {
  absl::Status full =
      absl::ResourceExhaustedError("the KV pool is out of frames although they were reserved");
  const int64_t old_count = static_cast<int64_t>(frames->size());
  for (int64_t i = std::max<int64_t>(0, first_written); i < old_count; ++i) {
    FrameId& frame = (*frames)[i];
    if (!pool->IsShared(frame)) continue;
    const FrameId copy = pool->Allocate();
    if (copy == kNoFrame) return full;
    pool->Copy(frame, copy);
    pool->Release(frame);
    frame = copy;
  }
  // First, so that no frame is taken that finds no place.
  if (count > static_cast<int64_t>(frames->capacity())) {
    frames->reserve(std::max(count, 2 * old_count));
  }
  while (static_cast<int64_t>(frames->size()) < count) {
    const FrameId frame = pool->Allocate();
    if (frame == kNoFrame) return full;
    frames->push_back(frame);
  }
  return absl::OkStatus();
}

absl::Status KvStore::Extend(const AttentionPlan& plan, int64_t num_tokens, int64_t num_new,
                             SequenceKv* kv) {
  const int64_t page = geometry_.page_tokens;
  const int64_t total = num_tokens + num_new;
  const int64_t first_written = num_tokens / page - kv->first_page;
  FOLIO_RETURN_IF_ERROR(
      GrowPrivate(pages_.get(), CeilDiv(total, page) - kv->first_page, first_written, &kv->pages));
  kv->num_shared_pages = std::min(kv->num_shared_pages, first_written);
  const int64_t num_sinks = std::min<int64_t>(plan.retention.num_sinks, total);
  FOLIO_RETURN_IF_ERROR(
      GrowPrivate(pages_.get(), CeilDiv(num_sinks, page), num_tokens / page, &kv->sinks));
  if (!plan.selection.enabled()) return absl::OkStatus();
  const int64_t chunk = plan.selection.chunk_tokens;
  if (NeedsQueries(plan.selection.scorer)) {
    // A chunk that begins in this step is written from its first token on.
    const int64_t first_token = num_tokens / chunk == total / chunk ? num_tokens % chunk : 0;
    FOLIO_RETURN_IF_ERROR(GrowPrivate(pages_.get(), pending_rows_.NumFrames(std::min(chunk, total)),
                                      pending_rows_.FrameOf(first_token), &kv->pending_queries));
  }
  const int64_t frames = FramesPerSummaryTile(plan.selection);
  return GrowPrivate(summaries_.get(), frames * CeilDiv(total / chunk, kTile),
                     frames * (num_tokens / chunk / kTile), &kv->summaries);
}

void KvStore::Trim(const AttentionPlan& plan, int64_t next_position, SequenceKv* kv) {
  if (plan.retention.window_tokens == kUnbounded) return;
  const int64_t first_token =
      std::max<int64_t>(0, next_position - plan.retention.window_tokens + 1);
  const int64_t keep_from = first_token / geometry_.page_tokens;
  const int64_t num_drop =
      std::min<int64_t>(keep_from - kv->first_page, static_cast<int64_t>(kv->pages.size()));
  if (num_drop <= 0) return;
  for (int64_t i = 0; i < num_drop; ++i) pages_->Release(kv->pages[i]);
  kv->pages.erase(kv->pages.begin(), kv->pages.begin() + num_drop);
  kv->first_page += num_drop;
  kv->num_shared_pages = std::max<int64_t>(0, kv->num_shared_pages - num_drop);
}

SequenceKv KvStore::Fork(const SequenceKv& kv) {
  SequenceKv fork = kv;
  AddRefs(pages_.get(), kv.pages);
  AddRefs(pages_.get(), kv.sinks);
  AddRefs(pages_.get(), kv.pending_queries);
  AddRefs(summaries_.get(), kv.summaries);
  fork.num_shared_pages = static_cast<int64_t>(kv.pages.size());
  return fork;
}

void KvStore::Release(SequenceKv* kv) {
  ReleaseAll(pages_.get(), &kv->pages);
  ReleaseAll(pages_.get(), &kv->sinks);
  ReleaseAll(pages_.get(), &kv->pending_queries);
  ReleaseAll(summaries_.get(), &kv->summaries);
  *kv = SequenceKv{};
}

int64_t KvStore::OwnPageBytes(const SequenceKv& kv) const {
  const int64_t num_pages = static_cast<int64_t>(kv.pages.size()) - kv.num_shared_pages;
  return (num_pages + static_cast<int64_t>(kv.sinks.size())) * pages_->frame_bytes();
}

int64_t KvStore::SharedPageBytes(const SequenceKv& kv) const {
  return kv.num_shared_pages * pages_->frame_bytes();
}

int64_t KvStore::SummaryBytes(const SequenceKv& kv) const {
  return static_cast<int64_t>(kv.summaries.size()) * summaries_->frame_bytes() +
         static_cast<int64_t>(kv.pending_queries.size()) * pages_->frame_bytes();
}

}  // namespace folio
