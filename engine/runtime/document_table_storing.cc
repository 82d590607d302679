// Documents and the disk: what is saved, unloaded, loaded and restored.
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/runtime/attention_text.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

void DocumentTable::Save(Document* document) {
  if (keeper_ == nullptr || document->saving || document->stored_cache != nullptr) return;
  Rendition* const rendition = &document->primary();
  const Sequence& sequence = rendition->sequence;
  SetEvictable(rendition, false);
  ++rendition->num_users;
  document->saving = true;
  const absl::Status ordered = CatchErrors([&] {
    DocumentKeeper::SaveOrder order;
    order.handle = document->handle;
    order.attention = AttentionText(rendition->attention);
    order.tokens = document->tokens;
    order.image = CacheImage::Of(*store_, sequence.plan, sequence.num_in_kv, sequence.kv);
    order.image.sealed_pages = keeper_->PlacesOf(sequence.kv);
    const auto info = directory_->Get(document->handle);
    if (info.ok() && info->attachment != nullptr) order.text = info->attachment->stored_text();
    if (info.ok()) order.attributes = info->attributes;
    const bool may_fit = keeper_->MayFit(order.image);
    keeper_->Save(std::move(order), [rendition, may_fit](EngineLoop& loop, auto saved) {
      loop.documents().NoteSaved(rendition, saved, may_fit);
    });
  });
  if (!ordered.ok()) NoteSaved(rendition, ordered, false);
}

void DocumentTable::Save(const DocumentHandle& handle) {
  Document* const document = Find(handle);
  if (document != nullptr && document->primary().complete()) Save(document);
}

void DocumentTable::NoteSaved(Rendition* rendition,
                              const absl::StatusOr<DocumentKeeper::SavedCache>& saved,
                              bool may_fit) {
  Document* const document = rendition->document;
  if (document != nullptr && may_fit && absl::IsResourceExhausted(saved.status()) && UnloadOne()) {
    // What is in memory does not leave the disk; now there may be room.
    document->saving = false;
    Save(document);
    return ReleaseUser(rendition);
  }
  if (document != nullptr) {
    document->saving = false;
    if (saved.ok()) {
      document->stored = true;
      document->stored_cache = saved->rendition;
      if (std::exchange(document->kept, false)) {
        kept_bytes_ -= rendition->sequence.reserved_bytes;
      }
      // The pages are twice on disk; where there is no memory for it they stay so.
      const SequenceKv& kv = rendition->sequence.kv;
      CatchErrors([&] {
        DocumentKeeper::Adopter adopter(keeper_, document->handle, *saved->rendition);
        for (int64_t page = kv.first_page; page < kv.open_page; ++page) {
          adopter.Adopt(kv.pages[page - kv.first_page], page);
        }
      }).IgnoreError();
    }
    directory_->SetSaved(document->handle, saved.ok() ? absl::StatusOr<int64_t>(saved->stored_bytes)
                                                      : saved.status());
    if (saved.ok()) SaveAttributesIfNot(document->handle, saved->attributes);
  }
  ReleaseUser(rendition);
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
  if (!loaded.ok()) {
    // What only was not to be had now may be there when somebody asks again.
    const bool gone = absl::IsDataLoss(loaded.status()) || absl::IsNotFound(loaded.status());
    if (gone) Fail(handle, loaded.status());
    return;
  }
  Document* const document = AddDocument(handle, info->attention, std::move(loaded->tokens));
  document->stored = true;
  document->kept = false;
  document->stored_cache = std::move(loaded->cache);
}

void DocumentTable::UnloadIfUnused(const DocumentHandle& handle) {
  Document* const document = Find(handle);
  if (document == nullptr || !document->stored || document->renditions.size() > 1) return;
  if (document->primary().num_users == 0 && !document->primary().complete()) Unload(document);
}

void DocumentTable::Restore(Rendition* rendition) {
  if (!IsOfUpload(*rendition) || rendition->document->stored_cache == nullptr) return;
  Document* const document = rendition->document;
  Sequence& sequence = rendition->sequence;
  ++rendition->num_users;
  rendition->restoring = sequence.paused = true;
  absl::Status ordered;
  const absl::Status caught = CatchErrors([&] {
    DocumentKeeper::Adopter adopter(keeper_, document->handle, *document->stored_cache);
    ordered = store_->Restore(
        sequence.plan, sequence.num_known,
        [&](FrameId frame, int64_t page) { adopter.Adopt(frame, page); }, &sequence.kv);
    if (!ordered.ok()) return;
    keeper_->Fill(document->handle, document->stored_cache,
                  CacheImage::Of(*store_, sequence.plan, sequence.num_known, sequence.kv),
                  [rendition](EngineLoop& loop, const auto& filled) {
                    loop.OnRestored(rendition, filled.status());
                  });
  });
  if (!caught.ok()) ordered = caught;
  if (!ordered.ok()) NoteRestored(rendition, ordered);
}

void DocumentTable::NoteRestored(Rendition* rendition, const absl::Status& status) {
  Sequence& sequence = rendition->sequence;
  rendition->restoring = sequence.paused = false;
  if (status.ok()) {
    sequence.num_in_kv = sequence.num_known;
    scheduler_->Retire(&sequence);
  } else {
    store_->Release(&sequence.kv);
    if (rendition->document != nullptr) rendition->document->stored_cache = nullptr;
  }
  if (rendition->document != nullptr) Publish(rendition->document);
  ReleaseUser(rendition);
}

void DocumentTable::LetGoOfFirst(Rendition* rendition) {
  Document* const document = rendition->document;
  if (!document->stored) return;
  const bool lost = store_->HasLostPages(rendition->sequence.kv);
  if (rendition->complete() && !lost) return SetEvictable(rendition, true);
  if (lost && document->stored_cache != nullptr) {
    const auto cache = std::exchange(document->stored_cache, nullptr);
    CatchErrors([&] { keeper_->Quarantine(document->handle, cache->number); }).IgnoreError();
  }
  if (!lost && document->renditions.size() == 1) return Unload(document);
  // It begins anew when somebody asks for it; its other renditions may be read.
  Sequence& sequence = rendition->sequence;
  SetEvictable(rendition, false);
  scheduler_->Remove(&sequence);
  sequence.num_in_kv = 0;
  rendition->admitted = false;
  Publish(document);
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
    const bool may_be_read = document != nullptr && document->stored && !document->saving;
    if (may_be_read) {
      deleted_.emplace(document->renditions.front().get(), handle);
    } else {
      keeper_->Delete(handle);  // behind the order to save it, if there was one
    }
  }).IgnoreError();  // it is on disk still, and there after a restart
  Drop(handle, reason);
}

}  // namespace folio
