#include "engine/runtime/document_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/quoted.h"
#include "engine/runtime/shortage.h"
#include "engine/types/document_name.h"

namespace folio {
Document* DocumentTable::Find(uint64_t incarnation) {
  const auto it = documents_.find(incarnation);
  return it == documents_.end() ? nullptr : it->second.get();
}

absl::Status DocumentTable::WhyGone(const DocumentHandle& handle) const {
  const auto info = directory_->Get(handle);
  return info.ok() ? info->error : info.status();
}

Rendition* DocumentTable::AddRendition(Document* document, const AttentionSpec& attention) {
  std::list<std::unique_ptr<Rendition>> made;
  Rendition* rendition = made.emplace_back(std::make_unique<Rendition>()).get();
  rendition->document = document;
  rendition->attention = attention;
  rendition->entry = rendition->place.insert(rendition->place.end(), rendition);
  Sequence& sequence = rendition->sequence;
  sequence.plan = PlanFor(attention, model_);
  sequence.tokens = document->tokens;
  sequence.num_known = sequence.max_tokens = std::ssize(*document->tokens);
  sequence.num_prompt = kUnbounded;
  sequence.leaves_for_others = !document->renditions.empty();
  if (const Payer& payer = document->payer; payer.tenant != nullptr) {
    rendition->account = accounts_->Open(payer.tenant);
    rendition->account->share.Set(payer.tenant);
    sequence.claim.tenant = &rendition->account->share;
    sequence.claim.priority = payer.priority;
  }
  scheduler_->Join(&sequence);
  by_sequence_[&sequence] = rendition;  // the last thing that may throw
  document->renditions.splice(document->renditions.end(), made);
  return rendition;
}

Document* DocumentTable::AddDocument(const DocumentHandle& handle, const AttentionSpec& attention,
                                     std::vector<int32_t> tokens) {
  auto owned = std::make_unique<Document>();
  Document* document = owned.get();
  document->handle = handle;
  if (const auto info = directory_->Get(handle); info.ok()) document->payer = info->payer;
  document->tokens = std::make_shared<std::vector<int32_t>>(std::move(tokens));
  AddRendition(document, attention);
  absl::Cleanup forget = [&] { by_sequence_.erase(&document->primary().sequence); };
  documents_.emplace(handle.incarnation, std::move(owned));
  std::move(forget).Cancel();
  return document;
}

void DocumentTable::Create(const DocumentHandle& handle, const AttentionSpec& attention) {
  Document* document = AddDocument(handle, attention, {});
  Rendition& primary = document->primary();
  primary.admitted = scheduler_->Admit(&primary.sequence);
  if (!primary.admitted) return Fail(handle, NoRoom(*document));
  kept_bytes_ += primary.sequence.reserved_bytes;
}

void DocumentTable::Append(const DocumentHandle& handle, const std::vector<int32_t>& tokens,
                           int64_t text_bytes) {
  LoadIfLeft(handle);
  if (LoadingUpload* upload = FindLoading(handle)) {
    upload->tokens.insert(upload->tokens.end(), tokens.begin(), tokens.end());
    upload->text_bytes = text_bytes;
    return;
  }
  Document* document = Find(handle);
  if (document == nullptr) return;
  document->tokens->insert(document->tokens->end(), tokens.begin(), tokens.end());
  document->text_bytes = text_bytes;
  SetKept(document);
  AwaitRoom(document);
  // It may have failed.
  if (Find(handle) != nullptr) SaveIfDue(document);
}

void DocumentTable::AwaitRoom(Document* document) {
  const bool waits = std::find(waiting_.begin(), waiting_.end(), document) != waiting_.end();
  if (waits || TakeRoom(document)) return;
  if (!MayFindRoom(*document)) return Fail(document->handle, NoRoom(*document));
  waiting_.push_back(document);
  directory_->SetShortOfRoom(document->handle, true);
}

bool DocumentTable::TakeRoom(Document* document) {
  Sequence& sequence = document->primary().sequence;
  const int64_t reserved = sequence.reserved_bytes;
  sequence.max_tokens = std::ssize(*document->tokens);
  if (!scheduler_->Grow(&sequence)) return false;
  kept_bytes_ += sequence.reserved_bytes - reserved;
  sequence.num_known = sequence.max_tokens;
  if (sequence.num_in_kv == 0) Restore(&document->primary());  // what an earlier process has left
  return true;
}

bool DocumentTable::MayFindRoom(const Document& document) const {
  const Sequence& sequence = document.renditions.front()->sequence;
  const int64_t more = scheduler_->BytesNeeded(sequence) - sequence.reserved_bytes;
  return sequence.claim.share().MayReserve(more) && more <= store_->capacity_bytes() - kept_bytes_;
}

absl::Status DocumentTable::NoRoom(const Document& document) const {
  const Sequence& sequence = document.renditions.front()->sequence;
  return StatusOf([&] {
    const TenantShare& share = sequence.claim.share();
    const int64_t needed = scheduler_->BytesNeeded(sequence);
    KvShortage shortage{.who = absl::StrCat("document ", Quoted(DocumentName(document.handle.id)),
                                            " at token ", sequence.max_tokens),
                        .needed_bytes = needed,
                        .kept_bytes = kept_bytes_ - sequence.reserved_bytes,
                        .capacity_bytes = store_->capacity_bytes()};
    if (share.MayReserve(needed - sequence.reserved_bytes)) return NoRoomInCache(shortage, model_);
    shortage.kept_bytes = share.reserved_bytes - sequence.reserved_bytes;
    return NoRoomForTenant(shortage, share.tenant->limits.max_kv_bytes);
  });
}

void DocumentTable::MakeRoom(bool something_runs) {
  for (size_t n = 0; n < waiting_.size();) {
    Document* document = waiting_[n];
    if (document->primary().sequence.paused) {
      ++n;
    } else if (TakeRoom(document)) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(n));
      directory_->SetShortOfRoom(document->handle, false);
    } else if (!something_runs || !MayFindRoom(*document)) {
      Fail(document->handle, NoRoom(*document));
    } else {
      return;  // those behind it wait, too
    }
  }
}

void DocumentTable::Finish(const DocumentHandle& handle) {
  LoadIfLeft(handle);
  if (LoadingUpload* upload = FindLoading(handle)) upload->finished = true;
  Document* document = Find(handle);
  if (document == nullptr) return;
  document->finished = document->save_soon = true;
  SetKept(document);
  NoteProgress(&document->primary());
}

void DocumentTable::SetPaused(Rendition* rendition) {
  const Document* const document = rendition->document;
  const bool of_upload = IsOfUpload(*rendition);
  const bool waits =
      of_upload && (document->completing ? !document->completes_now : document->paused);
  const int num_others =
      waits ? rendition->num_users - int{document->saving} - int{document->completing} : 0;
  rendition->sequence.paused =
      rendition->restoring_tokens > 0 || rendition->lost || (waits && num_others == 0);
}

void DocumentTable::Follow(const DocumentHandle& handle, std::shared_ptr<EventSink> sink) {
  Document* document = Find(handle);
  if (document == nullptr) return BeginLoading(handle, std::move(sink));
  document->sink = std::move(sink);
  document->followed = std::chrono::steady_clock::now();
  document->paused = document->save_soon = false;
  SetKept(document);
  SetPaused(&document->primary());
}

void DocumentTable::Pause(const DocumentHandle& handle) {
  if (LoadingUpload* upload = FindLoading(handle)) {
    upload->sink = nullptr;
    upload->paused = true;
  }
  Document* document = Find(handle);
  if (document == nullptr) return;
  document->sink = nullptr;
  document->paused = document->save_soon = true;
  SetPaused(&document->primary());
  SaveIfDue(document);
  SetKept(document);
}

void DocumentTable::Drop(const DocumentHandle& handle, const absl::Status& reason) {
  if (auto loading = loading_uploads_.extract(handle.incarnation)) {
    Send(loading.mapped().sink, FailedEvent{reason, Phase::kPrefill});
  }
  const auto it = documents_.find(handle.incarnation);
  if (it == documents_.end()) return;
  if (std::exchange(it->second->completing, false)) {
    completing_.reset();
    --it->second->primary().num_users;
  }
  const std::unique_ptr<Document> document = std::move(it->second);
  documents_.erase(it);
  std::erase(waiting_, document.get());
  Send(document->sink, FailedEvent{reason, Phase::kPrefill});
  std::list<std::unique_ptr<Rendition>>& renditions = document->renditions;
  if (!renditions.empty() && document->kept) {
    kept_bytes_ -= renditions.front()->sequence.reserved_bytes;
  }
  SetStayingBytes(document.get(), 0);
  while (!renditions.empty()) {
    Rendition* orphan = renditions.front().get();
    // It is not prefilled for the saver alone.
    const bool saving = document->saving && orphan == &document->primary();
    if (orphan->num_users == (saving ? 1 : 0)) orphan->sequence.paused = true;
    orphan->document = nullptr;
    orphans_.splice(orphans_.end(), renditions, renditions.begin());
    if (orphan->num_users == 0) FreeRendition(orphan);
  }
}

void DocumentTable::FailAll(const absl::Status& reason) {
  while (!documents_.empty()) Fail(documents_.begin()->second->handle, reason);
  for (const auto& [incarnation, upload] : std::exchange(loading_uploads_, {})) {
    Send(upload.sink, FailedEvent{reason, Phase::kPrefill});
  }
}

Rendition* DocumentTable::Acquire(Document* document, const AttentionSpec& attention) {
  Rendition* found = nullptr;
  for (auto& rendition : document->renditions) {
    if (rendition->attention == attention) found = rendition.get();
  }
  if (found == nullptr) found = AddRendition(document, attention);
  SetEvictable(found, false);
  ++found->num_users;
  SetKept(document);
  SetPaused(found);
  return found;
}

void DocumentTable::ReleaseUser(Rendition* rendition) {
  if (--rendition->num_users > 0) return;
  if (rendition->document == nullptr) return FreeRendition(rendition);
  if (IsOfUpload(*rendition)) return LetGoOfFirst(rendition);
  if (!rendition->complete()) return FreeRendition(rendition);
  SetEvictable(rendition, true);
}

void DocumentTable::SetEvictable(Rendition* rendition, bool evictable) {
  std::list<Rendition*>& place = rendition->place;
  if (evictable) {
    if (!place.empty()) evictable_bytes_ += rendition->sequence.reserved_bytes;
    evictable_.splice(evictable_.end(), place);
  } else if (place.empty()) {
    evictable_bytes_ -= rendition->sequence.reserved_bytes;
    place.splice(place.end(), evictable_, rendition->entry);
  }
}

void DocumentTable::FreeRendition(Rendition* rendition) {
  SetEvictable(rendition, false);
  scheduler_->Remove(&rendition->sequence);
  by_sequence_.erase(&rendition->sequence);
  const auto is_it = [rendition](const auto& other) { return other.get() == rendition; };
  if (Document* document = rendition->document; document != nullptr) {
    std::erase_if(document->renditions, is_it);
    Publish(document);
  } else {
    if (const auto deleted = deleted_.find(rendition); deleted != deleted_.end()) {
      CatchErrors([&] { keeper_->Delete(deleted->second); }).IgnoreError();
      deleted_.erase(deleted);
    }
    orphans_.remove_if(is_it);
  }
}

bool DocumentTable::EvictFor(int64_t bytes) {
  // Nothing is evicted in vain.
  const int64_t free_bytes = store_->capacity_bytes() - store_->reserved_bytes();
  if (free_bytes + evictable_bytes_ < bytes) return PutOffCompleting() && EvictFor(bytes);
  while (store_->capacity_bytes() - store_->reserved_bytes() < bytes) {
    Rendition* const first = evictable_.front();
    if (!IsOfUpload(*first)) {
      FreeRendition(first);
    } else if (first->document->renditions.size() == 1) {
      Unload(first->document);
    } else {
      LetCacheGo(first);  // others of its document are read
    }
  }
  return true;
}

void DocumentTable::Fail(const DocumentHandle& handle, const absl::Status& error) {
  directory_->Fail(handle, error).IgnoreError();  // deleted meanwhile: nobody asks any more
  Drop(handle, error);
}

Rendition* DocumentTable::RenditionOf(const Sequence* sequence) {
  const auto it = by_sequence_.find(sequence);
  return it == by_sequence_.end() ? nullptr : it->second;
}

void DocumentTable::FailRendition(Rendition* rendition, const absl::Status& error) {
  if (IsOfUpload(*rendition) && rendition->document->completing) {
    const Sequence* const sequence = &rendition->sequence;
    StopCompleting(rendition->document);
    rendition = RenditionOf(sequence);
    if (rendition == nullptr) return;
  }
  if (IsOfUpload(*rendition) && rendition->document->stored) {
    // Its tokens are there: the next question computes it again. Its last user may have let go; if
    // it is being saved, it will.
    rendition->sequence.paused = true;
    if (rendition->num_users == 0 && rendition->admitted) LetGoOfFirst(rendition);
  } else if (IsOfUpload(*rendition)) {
    Fail(rendition->document->handle, error);
  } else {
    FreeRendition(rendition);
  }
}

std::optional<DocumentState> DocumentTable::Publish(Document* document) {
  DocumentDirectory::Progress progress;
  const Rendition& primary = document->primary();
  progress.prefilled_tokens = primary.sequence.num_in_kv;
  if (primary.restoring_tokens > 0) progress.prefilled_tokens = primary.restoring_tokens;
  if (!primary.admitted) progress.prefilled_tokens = document->stored_tokens();
  for (const auto& rendition : document->renditions) {
    const KvFootprint footprint = store_->FootprintOf(rendition->sequence.kv);
    progress.device_kv_bytes += footprint.device_bytes;
    progress.host_kv_bytes += footprint.host_bytes;
    progress.disk_kv_bytes += footprint.disk_bytes;
    progress.summary_bytes += footprint.summary_bytes;
  }
  return directory_->SetProgress(document->handle, progress);
}

void DocumentTable::NoteProgress(Rendition* rendition) {
  Document* document = rendition->document;
  const bool primary = IsOfUpload(*rendition);
  std::optional<DocumentState> state;
  if (document != nullptr) state = Publish(document);
  const bool ready = state == DocumentState::kReady;
  // The upload's own goes on with tokens that are still to come.
  if (rendition->complete() && (ready || !primary)) scheduler_->Retire(&rendition->sequence);
  if (!primary) return;
  if (rendition->complete()) document->times_repaired = 0;
  Send(document->sink,
       PrefillEvent{std::ssize(*document->tokens), 0, rendition->sequence.num_in_kv});
  if (ready) {
    Send(document->sink, CompletedEvent{});
    document->sink = nullptr;
  }
  SaveIfDue(document);
}

void DocumentTable::AfterStep(const Sequence* sequence) {
  Rendition* const rendition = RenditionOf(sequence);
  if (rendition != nullptr && !rendition->lost) NoteProgress(rendition);
}

}  // namespace folio
