// Documents of which pages cannot be read any more: they are computed again.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/runtime/document_table.h"

namespace folio {
namespace {

// A disk that damages whatever is written to it ends the document.
constexpr int kMostRepairs = 3;

}  // namespace

absl::Status LostPagesError() {
  return StatusOf([] {
    return absl::UnavailableError(
        "a part of the KV cache cannot be read from disk any more; ask again");
  });
}

absl::Status CannotReadError(const char* what) {
  return StatusOf([what] {
    return absl::UnavailableError(
        absl::StrCat(what, " cannot be read from disk now: nothing comes; ask again"));
  });
}

void DocumentTable::Repair(Rendition* rendition) {
  if (rendition->document == nullptr || !store_->HasLostPages(rendition->sequence.kv)) return;
  if (!IsOfUpload(*rendition)) return FreeRendition(rendition);
  Document* const document = rendition->document;
  if (document->saving) {  // whoever saves it reads its frames
    rendition->lost = true;
    return SetPaused(rendition);
  }
  if (document->stored_cache != nullptr) {
    const auto cache = std::exchange(document->stored_cache, nullptr);
    CatchErrors([&] { keeper_->Quarantine(document->handle, cache->number); }).IgnoreError();
  }
  document->tried_cached_tokens = 0;
  document->tried_whole = false;
  const bool again = ++document->times_repaired <= kMostRepairs;
  if (document->stored) {
    LetCacheGo(rendition);
    if (!again && document->completing) StopCompleting(document);
    return;
  }
  const absl::Status begun =
      again ? CatchErrors([&] { scheduler_->BeginAgain(&rendition->sequence); }) : LostPagesError();
  if (!begun.ok()) return Fail(document->handle, begun);
  Publish(document);
}

}  // namespace folio
