// Documents and the disk: what is loaded, restored and unloaded.
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/attention/visible_keys.h"
#include "engine/base/catch_errors.h"
#include "engine/runtime/attention_text.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

bool DocumentTable::CanLoad(const DocumentHandle& handle) const {
  if (keeper_ == nullptr) return false;
  if (loading_.contains(handle.incarnation)) return true;
  const auto info = directory_->Get(handle);
  return info.ok() && info->saved && info->state == DocumentState::kReady;
}

void DocumentTable::Load(const DocumentHandle& handle) {
  const auto [place, is_new] = loading_.try_emplace(handle.incarnation);
  if (!is_new) return;
  const absl::Status ordered = CatchErrors([&, &place = place] {
    DocumentKeeper::LoadOrder order;
    order.handle = handle;
    // One that was deleted just now is not found, or read in vain.
    if (const auto info = directory_->Get(handle); info.ok()) {
      order.attention = AttentionText(info->attention);
      order.attachment = info->attachment;
      order.layout_of = [store = store_, plan = PlanFor(info->attention, model_)](int64_t count) {
        return LayoutImage(*store, plan, count);
      };
    }
    place->second = keeper_->Load(std::move(order), [handle](EngineLoop& loop, auto loaded) {
      loop.OnLoaded(handle, std::move(loaded));
    });
  });
  if (ordered.ok()) return;
  loading_.erase(handle.incarnation);
  throw std::bad_alloc();
}

void DocumentTable::AddLoaded(const DocumentHandle& handle,
                              absl::StatusOr<DocumentKeeper::LoadedDocument> loaded) {
  loading_.erase(handle.incarnation);
  const auto info = directory_->Get(handle);
  if (!info.ok()) return;  // deleted meanwhile
  const bool is_upload = FindLoading(handle) != nullptr;
  if (!loaded.ok()) {
    // What only was not to be had now may be there when somebody asks again; but text that has come
    // for an upload has no place then.
    const bool gone = absl::IsDataLoss(loaded.status()) || absl::IsNotFound(loaded.status());
    if (gone || is_upload) Fail(handle, loaded.status());
    return;
  }
  Document* const document = AddDocument(handle, info->attention, std::move(loaded->tokens));
  document->text_bytes = document->tried_text_bytes = loaded->text_bytes;
  document->saved_text_bytes = loaded->text_bytes;
  document->stored_cache = std::move(loaded->cache);
  document->tried_cached_tokens = document->stored_tokens();
  if (is_upload)
    return GoOn(document, std::move(loading_uploads_.extract(handle.incarnation).mapped()));
  document->stored = document->finished = true;
  document->kept = false;
}

void DocumentTable::FailUpload(const DocumentHandle& handle, const absl::Status& error) {
  const Document* const document = Find(handle);
  const bool is_upload = document == nullptr ? FindLoading(handle) != nullptr : !document->stored;
  if (is_upload) Fail(handle, error);
}

std::optional<SteadyTime> DocumentTable::LoadDeadline(const DocumentHandle& handle,
                                                      SteadyTime since) const {
  const auto it = loading_.find(handle.incarnation);
  if (it == loading_.end()) return std::nullopt;
  return DeadlineOf(*it->second, since);
}

void DocumentTable::ExpireUploads(SteadyTime now) {
  const auto why = [] {
    return FailedEvent{CannotReadError("the first part of the upload"), Phase::kPrefill};
  };
  for (auto& [incarnation, upload] : loading_uploads_) {
    const auto read = loading_.find(incarnation);
    if (upload.sink == nullptr || read == loading_.end()) continue;
    if (DeadlineOf(*read->second, upload.followed) > now) continue;
    upload.paused = true;
    Send(std::exchange(upload.sink, nullptr), why());
  }
  for (Rendition* const rendition : restoring_) {
    Document* const document = rendition->document;
    if (document == nullptr || document->sink == nullptr) continue;
    if (DeadlineOf(*rendition->restoring, document->followed) > now) continue;
    document->paused = true;
    Send(std::exchange(document->sink, nullptr), why());
  }
}

std::optional<SteadyTime> DocumentTable::NextUploadDeadline() const {
  std::optional<SteadyTime> next;
  const auto add = [&](const DiskProgress& read, SteadyTime since) {
    next = std::min(next.value_or(SteadyTime::max()), DeadlineOf(read, since));
  };
  for (const auto& [incarnation, upload] : loading_uploads_) {
    const auto read = loading_.find(incarnation);
    if (upload.sink != nullptr && read != loading_.end()) add(*read->second, upload.followed);
  }
  for (const Rendition* const rendition : restoring_) {
    const Document* const document = rendition->document;
    if (document == nullptr || document->sink == nullptr) continue;
    add(*rendition->restoring, document->followed);
  }
  return next;
}

DocumentTable::LoadingUpload* DocumentTable::FindLoading(const DocumentHandle& handle) {
  const auto it = loading_uploads_.find(handle.incarnation);
  return it == loading_uploads_.end() ? nullptr : &it->second;
}

void DocumentTable::BeginLoading(const DocumentHandle& handle, std::shared_ptr<EventSink> sink) {
  const auto info = directory_->Get(handle);
  const bool is_there = keeper_ != nullptr && info.ok() && info->state != DocumentState::kFailed;
  if (!is_there) return Send(sink, FailedEvent{WhyGone(handle), Phase::kPrefill});
  LoadingUpload& upload = loading_uploads_[handle.incarnation];
  upload.sink = std::move(sink);
  upload.followed = std::chrono::steady_clock::now();
  upload.paused = false;
  Load(handle);
}

void DocumentTable::LoadIfLeft(const DocumentHandle& handle) {
  if (keeper_ == nullptr || Find(handle) != nullptr || FindLoading(handle) != nullptr) return;
  const auto info = directory_->Get(handle);
  // Its state may be that of a call that this thread has not come to yet.
  const bool goes_on = info.ok() && info->state != DocumentState::kFailed && !info->saved;
  if (!goes_on || info->saved_text_bytes == 0) return;
  BeginLoading(handle, nullptr);
  FindLoading(handle)->paused = true;
}

bool DocumentTable::MayLeave(const Document& document) const {
  const Rendition& primary = document.primary();
  const bool short_of_room =
      std::find(waiting_.begin(), waiting_.end(), &document) != waiting_.end();
  return keeper_ != nullptr && !document.finished && document.paused && !document.saving &&
         document.saved_text_bytes > 0 && document.saved_text_bytes == document.text_bytes &&
         document.renditions.size() == 1 && primary.admitted && primary.num_users == 0 &&
         primary.restoring_tokens == 0 && !primary.lost && !short_of_room;
}

void DocumentTable::SetKept(Document* document) {
  const bool kept = !MayLeave(*document);
  if (document->stored || document->kept == kept) return;
  document->kept = kept;
  Rendition& primary = document->primary();
  kept_bytes_ += kept ? primary.sequence.reserved_bytes : -primary.sequence.reserved_bytes;
  SetEvictable(&primary, !kept);
}

void DocumentTable::GoOn(Document* document, LoadingUpload upload) {
  const DocumentHandle handle = document->handle;
  Sequence& sequence = document->primary().sequence;
  sequence.num_known = sequence.max_tokens = 0;  // as of one that begins
  document->primary().admitted = scheduler_->Admit(&sequence);
  if (!document->primary().admitted) return Fail(handle, NoRoom(*document));
  kept_bytes_ += sequence.reserved_bytes;
  document->sink = std::move(upload.sink);
  document->followed = upload.followed;
  document->paused = upload.paused;
  if (upload.tokens.empty()) {
    AwaitRoom(document);
  } else {
    Append(handle, upload.tokens, upload.text_bytes);
  }
  if (Find(handle) == nullptr) return;  // there will be no room
  SetPaused(&document->primary());
  if (upload.finished) return Finish(handle);
  SetKept(document);
}

void DocumentTable::UnloadIfUnused(const DocumentHandle& handle) {
  Document* const document = Find(handle);
  if (document == nullptr || !document->stored || document->renditions.size() > 1) return;
  if (document->primary().num_users == 0 && !document->primary().complete()) Unload(document);
}

CacheImage DocumentTable::LayoutImage(const KvStore& store, const AttentionPlan& plan,
                                      int64_t num_tokens) {
  CacheImage image;
  image.geometry = store.geometry();
  image.layout = store.LayoutOf(plan, num_tokens);
  image.page_slice_bytes = store.page_memory().slice_bytes;
  const bool on_host = store.home() == Tier::kHost;
  image.first_in_memory = on_host ? image.layout.first_page : image.layout.home_page;
  return image;
}

// Of pages in files: what heads choose, if each row of the question chooses anew; else all.
std::optional<RestoreChoice::Work> DocumentTable::WorkToRestore(const Rendition& rendition,
                                                                int64_t question_tokens) const {
  if (!IsOfUpload(rendition) || rendition.document->stored_cache == nullptr) return std::nullopt;
  const AttentionPlan& plan = rendition.sequence.plan;
  const int64_t num_tokens = rendition.document->stored_tokens();
  const CacheImage image = LayoutImage(*store_, plan, num_tokens);
  const KvGeometry& geometry = image.geometry;
  int64_t num_pages = image.first_in_memory - image.layout.first_page;
  if (plan.selection.enabled() && plan.top_tokens.count == 0) {
    const bool group = plan.selection.share == ChunkSelection::Share::kGroup;
    const int64_t choices = group ? 1 : geometry.num_heads / geometry.num_kv_heads;
    const int64_t seen = NumVisibleKeys(plan, num_tokens) / geometry.page_tokens + 1;
    num_pages = std::min(num_pages, seen * choices * question_tokens);
  }
  const int64_t page_bytes = geometry.num_slices() * image.page_slice_bytes;
  return RestoreChoice::Work{BytesBesideSealedPages(image) + num_pages * page_bytes, num_tokens};
}

void DocumentTable::Restore(Rendition* rendition) {
  if (!IsOfUpload(*rendition) || rendition->document->stored_cache == nullptr) return;
  if (rendition->restoring_tokens > 0) return;
  Document* const document = rendition->document;
  Sequence& sequence = rendition->sequence;
  ++rendition->num_users;
  ++num_moving_;
  rendition->restoring_tokens = document->stored_tokens();
  sequence.paused = true;
  absl::Status ordered;
  const absl::Status caught = CatchErrors([&] {
    DocumentKeeper::Adopter adopter(keeper_, document->handle, *document->stored_cache);
    ordered = store_->Restore(
        sequence.plan, document->stored_tokens(),
        [&](FrameId frame, int64_t page) { adopter.Adopt(frame, page); }, &sequence.kv);
    if (!ordered.ok()) return;
    restoring_.reserve(restoring_.size() + 1);
    const auto image = std::make_shared<const CacheImage>(
        CacheImage::Of(*store_, sequence.plan, document->stored_tokens(), sequence.kv));
    rendition->restoring =
        keeper_->Fill(document->handle, document->stored_cache, image, adopter.last_file(),
                      [rendition, image, store = store_](EngineLoop& loop, const auto& filled) {
                        if (filled.ok()) image->CopyToDevice(store->memory());
                        loop.OnRestored(rendition, filled);
                      });
    restoring_.push_back(rendition);
  });
  if (!caught.ok()) ordered = caught;
  if (!ordered.ok()) NoteRestored(rendition, ordered);
}

void DocumentTable::NoteRestored(Rendition* rendition, const absl::Status& status) {
  Document* const document = rendition->document;
  Sequence& sequence = rendition->sequence;
  --num_moving_;
  std::erase(restoring_, rendition);
  rendition->restoring = nullptr;
  const int64_t num_tokens = std::exchange(rendition->restoring_tokens, 0);
  if (status.ok()) {
    sequence.num_in_kv = num_tokens;
  } else {
    store_->Release(&sequence.kv);
    if (document != nullptr) document->stored_cache = nullptr;
    if (document != nullptr) document->tried_cached_tokens = 0;
  }
  if (document == nullptr) return ReleaseUser(rendition);
  const uint64_t incarnation = document->handle.incarnation;
  CatchErrors([&] { NoteProgress(rendition); }).IgnoreError();  // a later step does it
  ReleaseUser(rendition);
  if (Document* const left = Find(incarnation)) {
    SetPaused(&left->primary());
    SetKept(left);
  }
}

void DocumentTable::LetGoOfFirst(Rendition* rendition) {
  Document* const document = rendition->document;
  if (store_->HasLostPages(rendition->sequence.kv)) return Repair(rendition);
  if (!document->stored) return SetKept(document);
  if (rendition->complete()) return SetEvictable(rendition, true);
  if (document->renditions.size() == 1) return Unload(document);
  LetCacheGo(rendition);
}

// It comes back, or begins anew, when somebody asks for it.
void DocumentTable::LetCacheGo(Rendition* rendition) {
  SetEvictable(rendition, false);
  scheduler_->Remove(&rendition->sequence);
  rendition->sequence.num_in_kv = 0;
  rendition->admitted = false;
  Publish(rendition->document);
}

void DocumentTable::Unload(Document* document) {
  const auto it = documents_.find(document->handle.incarnation);
  const std::unique_ptr<Document> unloaded = std::move(it->second);
  documents_.erase(it);
  DocumentDirectory::Progress progress;
  progress.prefilled_tokens = unloaded->stored_tokens();
  directory_->SetProgress(unloaded->handle, progress);
  Rendition* const rendition = unloaded->renditions.front().get();
  rendition->document = nullptr;
  orphans_.splice(orphans_.end(), unloaded->renditions, unloaded->renditions.begin());
  FreeRendition(rendition);
}

void DocumentTable::Delete(const DocumentHandle& handle, const absl::Status& reason) {
  if (keeper_ == nullptr) return Drop(handle, reason);
  CatchErrors([&] {
    const Document* const document = Find(handle);
    if (document == nullptr) {
      keeper_->Delete(handle);
    } else {
      deleted_.emplace(&document->primary(),
                       handle);  // its pages may be read where they are stored
    }
  }).IgnoreError();  // it is on disk still, and there after a restart
  Drop(handle, reason);
}

}  // namespace folio
