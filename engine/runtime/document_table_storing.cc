// Documents and the disk: what is saved.
#include <algorithm>
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/base/status_macros.h"
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

void DocumentTable::Save(Document* document, SavedPart part, bool again) {
  Rendition* const rendition = &document->primary();
  const Sequence& sequence = rendition->sequence;
  const int64_t num_cached = rendition->admitted ? sequence.num_in_kv : 0;
  SaveAttempt attempt{.again = again};
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
  SetKept(document);
  document->save_soon = false;
  document->tried_whole = attempt.whole;
  document->tried_text_bytes = document->text_bytes;
  if (with_cache) document->tried_cached_tokens = num_cached;
  const absl::Status ordered = StatusOf([&]() -> absl::Status {
    DocumentKeeper::SaveOrder order;
    order.handle = document->handle;
    order.attention = AttentionText(rendition->attention);
    // Of one that grows there is a copy: its thread goes on with it.
    order.tokens = attempt.whole ? document->tokens
                                 : std::make_shared<std::vector<int32_t>>(*document->tokens);
    if (with_cache) {
      order.cached_tokens = num_cached;
      order.image = CacheImage::Of(*store_, sequence.plan, num_cached, sequence.kv);
      order.image.CopyFromDevice(store_->memory());
      if (!attempt.whole) order.image.CopyWhatChanges();
      FOLIO_ASSIGN_OR_RETURN(order.image.sealed_pages, keeper_->PlacesOf(*store_, sequence.kv));
    }
    const auto info = directory_->Get(document->handle);
    if (info.ok() && info->attachment != nullptr) order.text = info->attachment->stored_text();
    if (info.ok()) order.attributes = info->attributes;
    order.text.whole = document->finished;
    order.text.num_bytes = document->text_bytes;
    FOLIO_RETURN_IF_ERROR(
        directory_->BeginSaving(document->handle, DocumentKeeper::BytesOf(order)));
    attempt.may_fit = keeper_->MayFit(order.image);
    keeper_->Save(std::move(order), [rendition, attempt](EngineLoop& loop, auto saved) {
      loop.documents().NoteSaved(rendition, saved, attempt);
    });
    return absl::OkStatus();
  });
  if (ordered.ok()) return;
  NoteSaved(rendition, ordered, {.whole = attempt.whole, .with_cache = with_cache, .again = again});
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
      const FrameId frame = kv.pages[page - kv.first_page];
      // The home may still be writing the others, or asked to again.
      if (store_->IsHome(frame)) adopter.Adopt(frame, page);
    }
  }).IgnoreError();
}

int64_t DocumentTable::NumFixedPages(const Document& document) const {
  const AttentionPlan& plan = document.primary().sequence.plan;
  const int64_t num_home = store_->LayoutOf(plan, document.stored_tokens()).home_page;
  return num_home / SegmentHome::kPages * SegmentHome::kPages;
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
  store_->NoteWritten();  // what there was to be written has been: the document was saved after it
  if (rendition->lost) attempt = {.whole = attempt.whole};  // it is saved anew
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
  if (attempt.whole && !attempt.again && !saved.ok() && !store_->home_error().ok()) {
    // Pages that were on their way home did not get there; now it is known which.
    Save(document, SavedPart::kTextAndCache, true);
    return ReleaseUser(rendition);
  }
  const DocumentHandle& handle = document->handle;
  const uint64_t incarnation = handle.incarnation;
  if (attempt.whole) {
    const bool stays = document->kept && !saved.ok();
    SetStayingBytes(document, stays ? rendition->sequence.reserved_bytes : 0);
  }
  if (saved.ok()) {
    document->saved_text_bytes = saved->text_bytes;
    if (attempt.whole && std::exchange(document->kept, false)) {
      kept_bytes_ -= rendition->sequence.reserved_bytes;
    }
    document->stored = document->stored || attempt.whole;
    if (saved->cache != nullptr) NoteSavedCache(document, saved->cache, attempt.whole);
  }
  if (attempt.whole) {
    directory_->SetSaved(
        handle, saved.ok() ? absl::StatusOr<int64_t>(saved->stored_bytes) : saved.status());
  } else {
    directory_->SetSavedPart(
        handle, document->saved_text_bytes,
        saved.ok() ? absl::StatusOr<int64_t>(saved->stored_bytes) : saved.status());
  }
  if (saved.ok()) SaveAttributesIfNot(handle, saved->attributes);
  ReleaseUser(rendition);
  Document* const left = Find(incarnation);  // or it has left memory
  if (left == nullptr) return;
  if (std::exchange(left->primary().lost, false)) Repair(&left->primary());
  if (Find(incarnation) == nullptr) return;
  SetPaused(&left->primary());
  SaveIfDue(left);
  SetKept(left);
}

void DocumentTable::SetStayingBytes(Document* document, int64_t bytes) {
  staying_bytes_ += bytes - std::exchange(document->staying_bytes, bytes);
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

}  // namespace folio
