#include "engine/runtime/document_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/runtime/admission.h"

namespace folio {
namespace {

void Send(const std::shared_ptr<EventSink>& sink, Event event) {
  if (sink != nullptr) sink->OnEvent(std::move(event));
}

}  // namespace

Document* DocumentTable::Find(const DocumentHandle& handle) {
  const auto it = documents_.find(handle.incarnation);
  return it == documents_.end() ? nullptr : it->second.get();
}

absl::Status DocumentTable::WhyGone(const DocumentHandle& handle) const {
  const auto info = directory_->Get(handle);
  return info.ok() ? info->error : info.status();
}

Rendition* DocumentTable::AddRendition(Document* document, const AttentionSpec& attention) {
  auto rendition = std::make_unique<Rendition>();
  rendition->document = document;
  rendition->attention = attention;
  Sequence& sequence = rendition->sequence;
  sequence.plan = PlanFor(attention, model_);
  sequence.tokens = document->tokens;
  sequence.num_known = sequence.max_tokens = static_cast<int64_t>(document->tokens->size());
  sequence.num_prompt = kUnbounded;
  by_sequence_[&sequence] = rendition.get();
  document->renditions.push_back(std::move(rendition));
  return document->renditions.back().get();
}

void DocumentTable::Create(const DocumentHandle& handle, const AttentionSpec& attention) {
  auto owned = std::make_unique<Document>();
  Document* document = owned.get();
  document->handle = handle;
  document->tokens = std::make_shared<std::vector<int32_t>>();
  documents_.emplace(handle.incarnation, std::move(owned));
  Rendition& primary = *AddRendition(document, attention);
  primary.admitted = scheduler_->Admit(&primary.sequence);
  if (!primary.admitted) Fail(document, absl::ResourceExhaustedError("the KV pool is full"));
}

void DocumentTable::Append(const DocumentHandle& handle, const std::vector<int32_t>& tokens) {
  Document* document = Find(handle);
  if (document == nullptr) return;
  document->tokens->insert(document->tokens->end(), tokens.begin(), tokens.end());
  Sequence& sequence = document->primary().sequence;
  sequence.num_known = sequence.max_tokens = static_cast<int64_t>(document->tokens->size());
  if (scheduler_->Grow(&sequence)) return;
  Fail(document, absl::ResourceExhaustedError(
                     absl::StrCat("document '", handle.id, "' needs ",
                                  scheduler_->BytesNeeded(sequence), " bytes of KV cache at token ",
                                  sequence.num_known, "; the pool of ", store_->capacity_bytes(),
                                  " bytes has no room: delete documents, ", MemoryAdvice(model_))));
}

void DocumentTable::Finish(const DocumentHandle& handle) {
  if (Document* document = Find(handle)) NoteProgress(&document->primary());
}

void DocumentTable::Follow(const DocumentHandle& handle, std::shared_ptr<EventSink> sink) {
  Document* document = Find(handle);
  if (document == nullptr) return Send(sink, FailedEvent{WhyGone(handle), Phase::kPrefill});
  document->sink = std::move(sink);
  document->primary().sequence.paused = false;
}

void DocumentTable::Pause(const DocumentHandle& handle) {
  Document* document = Find(handle);
  if (document == nullptr) return;
  document->sink = nullptr;
  if (document->primary().num_users == 0) document->primary().sequence.paused = true;
}

void DocumentTable::Drop(const DocumentHandle& handle, const absl::Status& reason) {
  const auto it = documents_.find(handle.incarnation);
  if (it == documents_.end()) return;
  const std::unique_ptr<Document> document = std::move(it->second);
  documents_.erase(it);
  Send(document->sink, FailedEvent{reason, Phase::kPrefill});
  for (auto& rendition : document->renditions) {
    rendition->document = nullptr;
    Rendition* orphan = orphans_.emplace_back(std::move(rendition)).get();
    if (orphan->num_users == 0) FreeRendition(orphan);
  }
}

void DocumentTable::FailAll(const absl::Status& reason) {
  while (!documents_.empty()) Fail(documents_.begin()->second.get(), reason);
}

Rendition* DocumentTable::Acquire(Document* document, const AttentionSpec& attention) {
  Rendition* found = nullptr;
  for (auto& rendition : document->renditions) {
    if (rendition->attention == attention) found = rendition.get();
  }
  if (found == nullptr) found = AddRendition(document, attention);
  evictable_.erase(found->last_used);
  ++found->num_users;
  found->sequence.paused = false;
  return found;
}

void DocumentTable::ReleaseUser(Rendition* rendition) {
  if (--rendition->num_users > 0) return;
  if (rendition->document == nullptr) return FreeRendition(rendition);
  if (rendition == &rendition->document->primary()) return;
  if (!rendition->complete()) return FreeRendition(rendition);
  rendition->last_used = ++clock_;
  evictable_.emplace(rendition->last_used, rendition);
}

void DocumentTable::FreeRendition(Rendition* rendition) {
  scheduler_->Remove(&rendition->sequence);
  by_sequence_.erase(&rendition->sequence);
  evictable_.erase(rendition->last_used);
  const auto is_it = [rendition](const auto& other) { return other.get() == rendition; };
  if (Document* document = rendition->document; document != nullptr) {
    std::erase_if(document->renditions, is_it);
    Publish(document);
  } else {
    orphans_.remove_if(is_it);
  }
}

bool DocumentTable::EvictFor(int64_t bytes) {
  // Nothing is evicted in vain.
  int64_t possible = store_->capacity_bytes() - store_->reserved_bytes();
  for (const auto& [time, rendition] : evictable_) possible += rendition->sequence.reserved_bytes;
  if (possible < bytes) return false;
  while (store_->capacity_bytes() - store_->reserved_bytes() < bytes) {
    FreeRendition(evictable_.begin()->second);
  }
  return true;
}

void DocumentTable::Fail(Document* document, const absl::Status& error) {
  const DocumentHandle handle = document->handle;
  directory_->Fail(handle, error).IgnoreError();  // deleted meanwhile: nobody asks any more
  Drop(handle, error);
}

Rendition* DocumentTable::RenditionOf(const Sequence* sequence) {
  const auto it = by_sequence_.find(sequence);
  return it == by_sequence_.end() ? nullptr : it->second;
}

void DocumentTable::FailRendition(Rendition* rendition, const absl::Status& error) {
  if (rendition->document != nullptr && rendition == &rendition->document->primary()) {
    Fail(rendition->document, error);
  } else {
    FreeRendition(rendition);
  }
}

std::optional<DocumentState> DocumentTable::Publish(Document* document) {
  DocumentDirectory::Progress progress;
  progress.prefilled_tokens = document->primary().sequence.num_in_kv;
  for (const auto& rendition : document->renditions) {
    progress.kv_bytes += store_->OwnPageBytes(rendition->sequence.kv);
    progress.summary_bytes += store_->SummaryBytes(rendition->sequence.kv);
  }
  return directory_->SetProgress(document->handle, progress);
}

void DocumentTable::NoteProgress(Rendition* rendition) {
  Document* document = rendition->document;
  const bool primary = document != nullptr && rendition == &document->primary();
  std::optional<DocumentState> state;
  if (document != nullptr) state = Publish(document);
  const bool ready = state == DocumentState::kReady;
  // The upload's own goes on with tokens that are still to come.
  if (rendition->complete() && (ready || !primary)) scheduler_->Retire(&rendition->sequence);
  if (!primary) return;
  const Sequence& sequence = rendition->sequence;
  Send(document->sink, PrefillEvent{sequence.num_known, 0, sequence.num_in_kv});
  if (!ready) return;
  Send(document->sink, CompletedEvent{});
  document->sink = nullptr;
}

void DocumentTable::AfterStep(const std::vector<ScheduledTokens>& step) {
  for (const ScheduledTokens& part : step) {
    if (Rendition* rendition = RenditionOf(part.sequence)) NoteProgress(rendition);
  }
}

}  // namespace folio
