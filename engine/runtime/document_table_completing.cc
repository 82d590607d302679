// Documents of which an earlier process has left the text alone, or a part of the cache: the rest
// is prefilled while there is nothing else to do.
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/runtime/document_table.h"

namespace folio {

void DocumentTable::GoOnCompleting(bool idle) {
  while (true) {
    if (!completing_.has_value()) {
      if (!idle || to_complete_.empty()) return;
      completing_ = std::move(to_complete_.back());
      to_complete_.pop_back();
      if (Find(*completing_) == nullptr && HasRoomToComplete(*completing_)) Load(*completing_);
    }
    if (loading_.contains(completing_->incarnation)) return;
    Document* const document = Find(*completing_);
    if (document != nullptr && BeginCompleting(document)) {
      Rendition* const rendition = &document->primary();
      const bool admits = idle && !rendition->admitted && HasRoomToComplete(document->handle);
      if (admits && scheduler_->Admit(&rendition->sequence)) {
        rendition->admitted = true;
        Restore(rendition);
      }
      document->completes_now = idle && !scheduler_->HasWorkBeside(&rendition->sequence);
      SetPaused(rendition);
      if (rendition->admitted || !idle) return;
      StopCompleting(document);
    }
    completing_.reset();  // it is complete, gone, or would take the room of others
  }
}

bool DocumentTable::BeginCompleting(Document* document) {
  Rendition* const rendition = &document->primary();
  const bool wanted = document->stored && !rendition->complete();
  if (!wanted) {
    if (document->completing) StopCompleting(document);
  } else if (!std::exchange(document->completing, true)) {
    SetEvictable(rendition, false);
    ++rendition->num_users;
  }
  return wanted;
}

bool DocumentTable::HasRoomToComplete(const DocumentHandle& handle) const {
  const auto info = directory_->Get(handle);
  if (!info.ok() || !CanLoad(handle)) return false;
  Sequence sequence;
  sequence.plan = PlanFor(info->attention, model_);
  sequence.max_tokens = info->known_tokens;
  const int64_t free_bytes = store_->capacity_bytes() - store_->reserved_bytes();
  if (scheduler_->BytesNeeded(sequence) > free_bytes) return false;
  const auto file_bytes = [&](int64_t num_tokens) {
    return CacheFileBytes(LayoutImage(*store_, sequence.plan, num_tokens));
  };
  return keeper_->HasRoom(file_bytes(info->known_tokens) - file_bytes(info->prefilled_tokens));
}

void DocumentTable::StopCompleting(Document* document) {
  document->completing = document->completes_now = false;
  completing_.reset();
  SetPaused(&document->primary());
  ReleaseUser(&document->primary());
}

bool DocumentTable::PutOffCompleting() {
  Document* const document = completing_.has_value() ? Find(*completing_) : nullptr;
  if (document == nullptr || !document->completing || !document->primary().admitted) return false;
  if (document->primary().num_users > 1) return false;  // it is being read, saved or restored
  const absl::Status noted =
      CatchErrors([&] { to_complete_.insert(to_complete_.begin(), document->handle); });
  StopCompleting(document);
  return true;
}

}  // namespace folio
