#include "engine/runtime/document_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

void Send(const std::shared_ptr<EventSink>& sink, Event event) {
  if (sink != nullptr) sink->OnEvent(std::move(event));
}

}  // namespace

bool Rendition::ready() const {
  return admitted && sequence.num_in_kv == sequence.max_tokens &&
         (document == nullptr || document->finished);
}

Document* DocumentTable::Find(const std::string& id) {
  const auto it = documents_.find(id);
  return it == documents_.end() ? nullptr : it->second.get();
}

Rendition* DocumentTable::AddRendition(Document* document, const AttentionSpec& attention) {
  auto rendition = std::make_unique<Rendition>();
  rendition->document = document;
  rendition->attention = attention;
  rendition->last_used = ++clock_;
  Sequence& sequence = rendition->sequence;
  sequence.plan = PlanFor(attention, model_);
  sequence.tokens = document->tokens;
  sequence.num_known = sequence.max_tokens = static_cast<int64_t>(document->tokens->size());
  sequence.num_prompt = kUnbounded;
  by_sequence_[&sequence] = rendition.get();
  document->renditions.push_back(std::move(rendition));
  return document->renditions.back().get();
}

void DocumentTable::Open(const std::string& id, const AttentionSpec& attention,
                         std::shared_ptr<EventSink> sink) {
  Document* document = Find(id);
  if (document == nullptr) {
    auto owned = std::make_unique<Document>();
    document = owned.get();
    document->id = id;
    document->tokens = std::make_shared<std::vector<int32_t>>();
    documents_.emplace(id, std::move(owned));
    Rendition* primary = AddRendition(document, attention);
    primary->admitted = scheduler_->Admit(&primary->sequence);
    if (!primary->admitted) {
      Fail(document, absl::ResourceExhaustedError("the KV pool is full"));
    }
  }
  document->sink = std::move(sink);
  document->primary().sequence.paused = false;
  if (!document->status.ok()) Send(document->sink, FailedEvent{document->status, Phase::kPrefill});
}

void DocumentTable::Append(const std::string& id, const std::vector<int32_t>& tokens) {
  Document* document = Find(id);
  if (document == nullptr || !document->status.ok()) return;
  document->tokens->insert(document->tokens->end(), tokens.begin(), tokens.end());
  Sequence& sequence = document->primary().sequence;
  sequence.num_known = sequence.max_tokens = static_cast<int64_t>(document->tokens->size());
  if (scheduler_->Grow(&sequence)) return;
  const int64_t needed = scheduler_->BytesNeeded(sequence);
  if (EvictFor(needed - sequence.reserved_bytes) && scheduler_->Grow(&sequence)) return;
  Fail(document, absl::ResourceExhaustedError(absl::StrCat(
                     "document '", id, "' needs ", needed, " bytes of KV cache at token ",
                     sequence.num_known, "; the pool of ", store_->capacity_bytes(),
                     " bytes has no room: delete documents, choose lm_infinite, or raise "
                     "--kv-bytes")));
}

void DocumentTable::Finish(const std::string& id) {
  Document* document = Find(id);
  if (document == nullptr || !document->status.ok()) return;
  document->finished = true;
  NoteProgress(&document->primary());
}

void DocumentTable::Pause(const std::string& id) {
  Document* document = Find(id);
  if (document == nullptr) return;
  document->sink = nullptr;
  if (document->primary().num_users == 0) document->primary().sequence.paused = true;
}

void DocumentTable::Delete(const std::string& id) {
  const auto it = documents_.find(id);
  if (it == documents_.end()) return;
  Document* document = it->second.get();
  Send(document->sink,
       FailedEvent{absl::NotFoundError(absl::StrCat("document '", id, "' was deleted")),
                   Phase::kPrefill});
  for (auto& rendition : document->renditions) {
    rendition->document = nullptr;
    if (rendition->num_users == 0) {
      scheduler_->Remove(&rendition->sequence);
      by_sequence_.erase(&rendition->sequence);
    } else {
      orphans_.push_back(std::move(rendition));
    }
  }
  documents_.erase(it);
}

Rendition* DocumentTable::Acquire(Document* document, const AttentionSpec& attention) {
  Rendition* found = nullptr;
  for (auto& rendition : document->renditions) {
    if (rendition->attention == attention) found = rendition.get();
  }
  if (found == nullptr) found = AddRendition(document, attention);
  ++found->num_users;
  found->last_used = ++clock_;
  found->sequence.paused = false;
  return found;
}

void DocumentTable::ReleaseUser(Rendition* rendition) {
  if (--rendition->num_users > 0) return;
  const bool secondary =
      rendition->document != nullptr && rendition != &rendition->document->primary();
  if (rendition->document == nullptr || (secondary && !rendition->ready())) {
    FreeRendition(rendition);
  }
}

void DocumentTable::FreeRendition(Rendition* rendition) {
  scheduler_->Remove(&rendition->sequence);
  by_sequence_.erase(&rendition->sequence);
  const auto is_it = [rendition](const auto& other) { return other.get() == rendition; };
  if (rendition->document == nullptr) {
    orphans_.remove_if(is_it);
  } else {
    std::erase_if(rendition->document->renditions, is_it);
  }
}

bool DocumentTable::EvictFor(int64_t bytes) {
  while (store_->capacity_bytes() - store_->reserved_bytes() < bytes) {
    Rendition* oldest = nullptr;
    for (auto& [id, document] : documents_) {
      for (size_t i = 1; i < document->renditions.size(); ++i) {
        Rendition* candidate = document->renditions[i].get();
        if (candidate->num_users > 0) continue;
        if (oldest == nullptr || candidate->last_used < oldest->last_used) oldest = candidate;
      }
    }
    if (oldest == nullptr) return false;
    FreeRendition(oldest);
  }
  return true;
}

void DocumentTable::Fail(Document* document, absl::Status status) {
  document->status = std::move(status);
  scheduler_->Remove(&document->primary().sequence);
  document->primary().admitted = false;
  Send(document->sink, FailedEvent{document->status, Phase::kPrefill});
}

Rendition* DocumentTable::RenditionOf(const Sequence* sequence) {
  const auto it = by_sequence_.find(sequence);
  return it == by_sequence_.end() ? nullptr : it->second;
}

void DocumentTable::FailRendition(Rendition* rendition, absl::Status status) {
  if (rendition->document != nullptr && rendition == &rendition->document->primary()) {
    Fail(rendition->document, std::move(status));
  } else {
    FreeRendition(rendition);
  }
}

void DocumentTable::NoteProgress(Rendition* rendition) {
  Document* document = rendition->document;
  const Sequence& sequence = rendition->sequence;
  if (rendition->ready()) scheduler_->Retire(&rendition->sequence);
  if (document == nullptr || rendition != &document->primary()) return;
  Send(document->sink, PrefillEvent{sequence.num_known, 0, sequence.num_in_kv});
  if (!rendition->ready()) return;
  Send(document->sink, CompletedEvent{});
  document->sink = nullptr;
}

void DocumentTable::AfterStep(const std::vector<ScheduledTokens>& step) {
  for (const ScheduledTokens& part : step) {
    const auto it = by_sequence_.find(part.sequence);
    if (it != by_sequence_.end()) NoteProgress(it->second);
  }
}

}  // namespace folio
