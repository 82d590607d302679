// Documents and the disk: what is saved, unloaded, loaded and restored.
#include <algorithm>
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/runtime/attention_text.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

namespace {

// An upload is saved as it goes on, whenever there is so much more text, or so many more pages: a
// crash costs no more. Of the pages at most a quarter is written twice, those of the last segment.
constexpr int64_t kTextPerSave = 256 << 10;
constexpr int64_t kPagesPerSave = 4 * SegmentHome::kPages;

}  // namespace

void DocumentTable::SaveIfDue(Document* document) {
  if (keeper_ == nullptr || document->saving || document->tokens->empty()) return;
  const Rendition& primary = document->primary();
  if (primary.restoring_tokens > 0) return;
  const int64_t num_cached = primary.admitted ? primary.sequence.num_in_kv : 0;
  const int64_t num_tokens = std::ssize(*document->tokens);
  const bool whole = document->finished && num_cached == num_tokens && !document->tried_whole &&
                     (!document->stored || document->stored_tokens() < num_tokens);
  const int64_t new_text = document->text_bytes - document->tried_text_bytes;
  const int64_t new_tokens = num_cached - document->tried_cached_tokens;
  const bool enough =
      new_text >= kTextPerSave || new_tokens >= kPagesPerSave * store_->geometry().page_tokens;
  const bool the_rest = document->save_soon && (new_text > 0 || new_tokens > 0);
  if (whole || enough || the_rest) Save(document);
}

void DocumentTable::Save(Document* document, SavedPart part) {
  Rendition* const rendition = &document->primary();
  const Sequence& sequence = rendition->sequence;
  const int64_t num_cached = rendition->admitted ? sequence.num_in_kv : 0;
  SaveAttempt attempt;
  attempt.whole = document->finished && num_cached == std::ssize(*document->tokens);
  const bool much =
      num_cached - document->stored_tokens() >= kPagesPerSave * store_->geometry().page_tokens;
  // While tokens still come quickly, the text alone is soon written.
  const bool with_cache = attempt.with_cache = part == SavedPart::kTextAndCache &&
                                               num_cached > document->stored_tokens() &&
                                               (attempt.whole || document->paused || much);
  SetEvictable(rendition, false);
  ++rendition->num_users;
  ++num_moving_;
  document->saving = true;
  document->save_soon = false;
  document->tried_whole = attempt.whole;
  document->tried_text_bytes = document->text_bytes;
  if (with_cache) document->tried_cached_tokens = num_cached;
  const absl::Status ordered = CatchErrors([&] {
    DocumentKeeper::SaveOrder order;
    order.handle = document->handle;
    order.attention = AttentionText(rendition->attention);
    // Of one that grows there is a copy: its thread goes on with it.
    order.tokens = attempt.whole ? document->tokens
                                 : std::make_shared<std::vector<int32_t>>(*document->tokens);
    if (with_cache) {
      order.cached_tokens = num_cached;
      order.image = CacheImage::Of(*store_, sequence.plan, num_cached, sequence.kv);
      if (!attempt.whole) order.image.CopyWhatChanges();
      order.image.sealed_pages = keeper_->PlacesOf(sequence.kv);
    }
    const auto info = directory_->Get(document->handle);
    if (info.ok() && info->attachment != nullptr) order.text = info->attachment->stored_text();
    if (info.ok()) order.attributes = info->attributes;
    order.text.whole = document->finished;
    order.text.num_bytes = document->text_bytes;
    attempt.may_fit = keeper_->MayFit(order.image);
    keeper_->Save(std::move(order), [rendition, attempt](EngineLoop& loop, auto saved) {
      loop.documents().NoteSaved(rendition, saved, attempt);
    });
  });
  if (!ordered.ok()) NoteSaved(rendition, ordered, {.whole = attempt.whole});
}

void DocumentTable::Save(const DocumentHandle& handle) {
  Document* const document = Find(handle);
  if (document == nullptr || keeper_ == nullptr || document->saving) return;
  const bool lacks_cache = document->stored_tokens() < std::ssize(*document->tokens);
  if (document->primary().complete() && (!document->stored || lacks_cache)) Save(document);
}

// The pages are twice on disk until then; where there is no memory for it they stay so. A segment
// that is not full is written anew with the next part of the document.
void DocumentTable::AdoptSavedPages(const Document& document, int64_t first_page, bool whole) {
  const Sequence& sequence = document.primary().sequence;
  const SequenceKv& kv = sequence.kv;
  const int64_t end = whole ? kv.open_page : NumFixedPages(document);
  CatchErrors([&] {
    DocumentKeeper::Adopter adopter(keeper_, document.handle, *document.stored_cache);
    for (int64_t page = std::max(first_page, kv.first_page); page < end; ++page) {
      adopter.Adopt(kv.pages[page - kv.first_page], page);
    }
  }).IgnoreError();
}

int64_t DocumentTable::NumFixedPages(const Document& document) const {
  const AttentionPlan& plan = document.primary().sequence.plan;
  const int64_t num_sealed = store_->LayoutOf(plan, document.stored_tokens()).open_page;
  return num_sealed / SegmentHome::kPages * SegmentHome::kPages;
}

void DocumentTable::NoteSavedCache(Document* document,
                                   const std::shared_ptr<const StoredRendition>& cache,
                                   bool whole) {
  const int64_t num_fixed = NumFixedPages(*document);
  document->stored_cache = cache;
  AdoptSavedPages(*document, num_fixed, whole);
}

void DocumentTable::NoteSaved(Rendition* rendition,
                              const absl::StatusOr<DocumentKeeper::SavedDocument>& saved,
                              SaveAttempt attempt) {
  Document* const document = rendition->document;
  --num_moving_;
  if (document == nullptr) return ReleaseUser(rendition);
  document->saving = false;
  if (attempt.may_fit && attempt.whole && absl::IsResourceExhausted(saved.status()) &&
      UnloadOne()) {
    // What is in memory does not leave the disk; now there may be room.
    Save(document);
    return ReleaseUser(rendition);
  }
  if (!attempt.whole && attempt.with_cache && absl::IsResourceExhausted(saved.status())) {
    Save(document, SavedPart::kText);  // for which there may be room
    return ReleaseUser(rendition);
  }
  const DocumentHandle& handle = document->handle;
  const uint64_t incarnation = handle.incarnation;
  if (saved.ok()) {
    if (attempt.whole && std::exchange(document->kept, false)) {
      kept_bytes_ -= rendition->sequence.reserved_bytes;
    }
    document->stored = document->stored || attempt.whole;
    if (saved->cache != nullptr) NoteSavedCache(document, saved->cache, attempt.whole);
  }
  if (attempt.whole) {
    directory_->SetSaved(
        handle, saved.ok() ? absl::StatusOr<int64_t>(saved->stored_bytes) : saved.status());
    if (saved.ok()) SaveAttributesIfNot(handle, saved->attributes);
  } else if (saved.ok()) {
    directory_->SetSavedPart(handle, saved->text_bytes, saved->stored_bytes);
  }
  ReleaseUser(rendition);
  Document* const left = Find(incarnation);  // or it has left memory
  if (left == nullptr) return;
  SetPaused(&left->primary());
  SaveIfDue(left);
}

// They may have been changed while the document was being written.
void DocumentTable::SaveAttributesIfNot(const DocumentHandle& handle,
                                        const DocumentAttributes& saved) {
  CatchErrors([&] {
    DocumentAttributes attributes = saved;
    directory_->CopyAttributes(handle, &attributes);
    if (attributes == saved) return;
    keeper_->UpdateAttributes(handle, [directory = directory_, handle](auto* stored) {
      directory->CopyAttributes(handle, stored);
    });
  }).IgnoreError();
}

bool DocumentTable::UnloadOne() {
  for (Rendition* rendition : evictable_) {
    Document* const document = rendition->document;
    if (!IsOfUpload(*rendition) || document->renditions.size() > 1) continue;
    Unload(document);
    return true;
  }
  return false;
}

bool DocumentTable::CanLoad(const DocumentHandle& handle) const {
  if (keeper_ == nullptr) return false;
  if (loading_.contains(handle.incarnation)) return true;
  const auto info = directory_->Get(handle);
  return info.ok() && info->saved && info->state == DocumentState::kReady;
}

void DocumentTable::Load(const DocumentHandle& handle) {
  if (!loading_.insert(handle.incarnation).second) return;
  const absl::Status ordered = CatchErrors([&] {
    const auto info = directory_->Get(handle);
    if (!info.ok()) return;
    DocumentKeeper::LoadOrder order;
    order.handle = handle;
    order.attention = AttentionText(info->attention);
    order.attachment = info->attachment;
    order.layout_of = [store = store_, plan = PlanFor(info->attention, model_)](int64_t count) {
      CacheImage image;
      image.geometry = store->geometry();
      image.layout = store->LayoutOf(plan, count);
      image.page_slice_bytes = store->page_memory().slice_bytes;
      return image;
    };
    keeper_->Load(std::move(order), [handle](EngineLoop& loop, auto loaded) {
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
  upload.paused = false;
  Load(handle);
}

void DocumentTable::GoOn(Document* document, LoadingUpload upload) {
  const DocumentHandle handle = document->handle;
  Sequence& sequence = document->primary().sequence;
  sequence.num_known = sequence.max_tokens = 0;  // as of one that begins
  document->primary().admitted = scheduler_->Admit(&sequence);
  if (!document->primary().admitted) return Fail(handle, NoRoom(*document));
  kept_bytes_ += sequence.reserved_bytes;
  document->sink = std::move(upload.sink);
  document->paused = upload.paused;
  if (upload.tokens.empty()) {
    AwaitRoom(document);
  } else {
    Append(handle, upload.tokens, upload.text_bytes);
  }
  if (Find(handle) == nullptr) return;  // there will be no room
  SetPaused(&document->primary());
  if (upload.finished) Finish(handle);
}

void DocumentTable::UnloadIfUnused(const DocumentHandle& handle) {
  Document* const document = Find(handle);
  if (document == nullptr || !document->stored || document->renditions.size() > 1) return;
  if (document->primary().num_users == 0 && !document->primary().complete()) Unload(document);
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
    keeper_->Fill(document->handle, document->stored_cache,
                  CacheImage::Of(*store_, sequence.plan, document->stored_tokens(), sequence.kv),
                  adopter.last_file(), [rendition](EngineLoop& loop, const auto& filled) {
                    loop.OnRestored(rendition, filled.status());
                  });
  });
  if (!caught.ok()) ordered = caught;
  if (!ordered.ok()) NoteRestored(rendition, ordered);
}

void DocumentTable::NoteRestored(Rendition* rendition, const absl::Status& status) {
  Document* const document = rendition->document;
  Sequence& sequence = rendition->sequence;
  --num_moving_;
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
  if (Document* const left = Find(incarnation)) SetPaused(&left->primary());
}

void DocumentTable::LetGoOfFirst(Rendition* rendition) {
  Document* const document = rendition->document;
  if (!document->stored) return;
  const bool lost = store_->HasLostPages(rendition->sequence.kv);
  if (rendition->complete() && !lost) return SetEvictable(rendition, true);
  if (lost && document->stored_cache != nullptr) {
    const auto cache = std::exchange(document->stored_cache, nullptr);
    document->tried_cached_tokens = 0;
    document->tried_whole = false;
    CatchErrors([&] { keeper_->Quarantine(document->handle, cache->number); }).IgnoreError();
  }
  if (!lost && document->renditions.size() == 1) return Unload(document);
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
  if (unloaded->stored_cache != nullptr) progress.prefilled_tokens = std::ssize(*unloaded->tokens);
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
