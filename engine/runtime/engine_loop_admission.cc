// How requests come into the loop: what they read, and when memory and places are there for them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/base/catch_errors.h"
#include "engine/runtime/engine_loop.h"
#include "engine/runtime/shortage.h"
#include "engine/runtime/turns.h"

namespace folio {
namespace {

// Requests that fit may be admitted so often before an earlier one that does not, which is not
// starved by them.
constexpr int kMaxTimesPassed = 8;

}  // namespace

void EngineLoop::Submit(RequestId id, std::unique_ptr<Generation> owned) {
  Generation* generation = owned.get();
  generation->sequence.id = id;
  std::unique_ptr<Generation>& place = requests_[id];
  place = std::move(owned);
  waiting_.push_back(generation);
  const std::optional<DocumentHandle>& document = generation->spec.document;
  generation->awaits_document = document.has_value() && documents_.Find(*document) == nullptr &&
                                documents_.CanLoad(*document);
  generation->awaits_document ? documents_.Load(*document) : Begin(generation);
}

void EngineLoop::Begin(Generation* generation) {
  generation->awaits_document = false;
  if (!Prepare(generation)) {
    generation->Fail(documents_.WhyGone(*generation->spec.document));
    return Forget(generation);
  }
  by_sequence_[&generation->sequence] = generation;
  counters_.cached_tokens += generation->cached_tokens;
}

void EngineLoop::OnLoaded(const DocumentHandle& handle,
                          absl::StatusOr<DocumentKeeper::LoadedDocument> loaded) {
  absl::Status status = loaded.status();
  const absl::Status added = CatchErrors([&] { documents_.AddLoaded(handle, std::move(loaded)); });
  if (!added.ok()) documents_.FailUpload(handle, added);
  if (status.ok()) status = added;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Generation* const generation = *it++;
    if (!generation->awaits_document || generation->spec.document != handle) continue;
    const bool can_begin = status.ok() || absl::IsDataLoss(status) || absl::IsNotFound(status);
    const absl::Status begun = !can_begin ? StatusOf([&] {
      return absl::UnavailableError(absl::StrCat(
          "the document cannot be read from disk now: ", status.message(), "; ask again"));
    })
                                          : CatchErrors([&] { Begin(generation); });
    if (!begun.ok()) Cancel(generation->sequence.id, begun);
  }
  CompleteDocuments();
  documents_.UnloadIfUnused(handle);
}

void EngineLoop::OnRestored(Rendition* rendition,
                            const absl::StatusOr<DocumentKeeper::Filled>& filled) {
  if (filled.ok()) restores_.NoteRead(filled->num_bytes, filled->seconds);
  for (Generation* generation : waiting_) {
    if (generation->rendition != rendition || !filled.ok()) continue;
    generation->cached_tokens = rendition->restoring_tokens;
    counters_.cached_tokens += generation->cached_tokens;
  }
  documents_.NoteRestored(rendition, filled.status());
}

void EngineLoop::Restore(Rendition* rendition, const Generation& question) {
  const int64_t question_tokens = question.sequence.num_prompt - question.sequence.tokens_begin;
  const auto work = documents_.WorkToRestore(*rendition, question_tokens);
  if (work.has_value() && !restores_.ShouldPrefill(*work)) documents_.Restore(rendition);
}

bool EngineLoop::Prepare(Generation* generation) {
  const GenerateSpec& spec = generation->spec;
  Sequence& sequence = generation->sequence;
  int64_t document_tokens = 0;
  const bool truncated = PlanFor(spec.attention, options_.model).truncation.enabled();
  if (spec.document.has_value()) {
    Document* document = documents_.Find(*spec.document);
    if (document == nullptr) return false;
    if (truncated) {
      // What is cut depends on the question: nothing of the document's cache can be used.
      sequence.tokens->insert(sequence.tokens->begin(), document->tokens->begin(),
                              document->tokens->end());
    } else {
      document_tokens = std::ssize(*document->tokens);
      generation->rendition = documents_.Acquire(document, spec.attention);
      generation->cached_tokens = generation->rendition->sequence.num_in_kv;
      sequence.prefix = &generation->rendition->sequence;
    }
  }
  sequence.plan =
      PlanFor(spec.attention, options_.model, document_tokens + std::ssize(*sequence.tokens));
  if (truncated) {
    *sequence.tokens =
        TruncatePrompt(sequence.plan.truncation, *sequence.tokens, spec.stop.max_new_tokens);
    sequence.plan.prompt_tokens = std::ssize(*sequence.tokens);
  }
  sequence.tokens_begin = document_tokens;
  sequence.num_known = sequence.num_prompt = document_tokens + std::ssize(*sequence.tokens);
  sequence.max_tokens = sequence.num_prompt + spec.stop.max_new_tokens;
  return true;
}

int64_t EngineLoop::waiting_prefill_tokens() const {
  int64_t tokens = 0;
  for (const Generation* generation : waiting_) {
    tokens += generation->sequence.num_prompt - generation->cached_tokens;
  }
  return tokens;
}

void EngineLoop::AdmitReturning() {
  while (!returning_.empty() && num_running() < options_.max_running_requests) {
    returning_.front()->sequence.paused = false;
    Move(returning_.front(), &returning_, &running_);
  }
}

bool EngineLoop::SomethingRuns() const {
  const auto pending = [](const Generation* generation) {
    return generation->rendition != nullptr && generation->rendition->admitted &&
           !generation->rendition->complete();
  };
  return !running_.empty() || !held_back_.empty() || !returning_.empty() || !scorings_.empty() ||
         documents_.moves_something() || std::any_of(waiting_.begin(), waiting_.end(), pending);
}

void EngineLoop::AdmitDocuments() {
  if (documents_.short_of_room()) documents_.MakeRoom(SomethingRuns());
  if (!documents_.short_of_room()) times_uploads_passed_ = 0;
}

EngineLoop::Admission EngineLoop::TryAdmitRequest(Generation* generation) {
  if (generation->awaits_document) return Admission::kNotYet;
  Rendition* rendition = generation->rendition;
  if (rendition != nullptr && !rendition->complete()) {
    if (rendition->admitted) return Admission::kNotYet;
    rendition->admitted = scheduler_.Admit(&rendition->sequence);
    if (!rendition->admitted) return Admission::kNoMemory;
    Restore(rendition, *generation);
    return Admission::kNotYet;
  }
  if (num_running() >= options_.max_running_requests) return Admission::kNoPlace;
  generation->PrepareDraws(options_.vocab_size);
  return scheduler_.Admit(&generation->sequence) ? Admission::kAdmitted : Admission::kNoMemory;
}

EngineLoop::Admission EngineLoop::TryAdmit(Generation* generation) {
  Admission admission = Admission::kFailed;
  const absl::Status tried = CatchErrors([&] { admission = TryAdmitRequest(generation); });
  if (!tried.ok()) Cancel(generation->sequence.id, tried);
  return admission;
}

int64_t EngineLoop::BytesLacking(const Generation& generation) const {
  const Rendition* rendition = generation.rendition;
  const bool of_rendition = rendition != nullptr && !rendition->complete();
  return scheduler_.BytesNeeded(of_rendition ? rendition->sequence : generation.sequence);
}

bool EngineLoop::MayRoomBeMadeFor(const Generation& generation) const {
  int64_t room = store_->capacity_bytes() - store_->reserved_bytes();
  for (const Generation* held_back : held_back_) room += held_back->sequence.reserved_bytes;
  return !held_back_.empty() && room >= BytesLacking(generation);
}

absl::Status EngineLoop::WhyNoRoom(const Generation& generation) const {
  const Rendition* rendition = generation.rendition;
  int64_t needed = BytesLacking(generation);
  // One that questions brought is there as long as they read it.
  if (rendition != nullptr && !DocumentTable::IsOfUpload(*rendition)) {
    needed += rendition->sequence.reserved_bytes;
  }
  return StatusOf([&] {
    return NoRoomInCache({.who = "the request",
                          .needed_bytes = needed,
                          .kept_bytes = documents_.kept_bytes(),
                          .capacity_bytes = store_->capacity_bytes()},
                         options_.model);
  });
}

void EngineLoop::AdmitRequests() {
  AdmitReturning();
  AdmitDocuments();
  AdmitWaiting();
}

EngineLoop::Admission EngineLoop::TryAdmitInstead(Generation* generation) {
  Generation* const gives_way = WhoGivesWay(*generation, running_);
  if (gives_way == nullptr) return Admission::kNoPlace;
  Move(gives_way, &running_, &returning_);
  const Admission admission = TryAdmit(generation);
  if (admission == Admission::kAdmitted) {
    gives_way->sequence.paused = true;
  } else {
    Move(gives_way, &returning_, &running_);
  }
  return admission;
}

void EngineLoop::AdmitWaiting() {
  TakeTurns({&running_, &returning_, &held_back_}, &waiting_);
  bool rendition_pending = false;
  Generation* passed = nullptr;  // the first one that memory is short for
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (times_uploads_passed_ >= kMaxTimesPassed && SomethingRuns()) break;
    Generation* generation = *it++;
    Admission admission = TryAdmit(generation);
    if (admission == Admission::kNoPlace) admission = TryAdmitInstead(generation);
    if (admission == Admission::kNoPlace) break;
    if (admission == Admission::kFailed) continue;
    if (admission == Admission::kNotYet) {
      rendition_pending = true;
      continue;
    }
    if (admission == Admission::kAdmitted) {
      Move(generation, &waiting_, &running_);
      generation->Admit();
      if (documents_.short_of_room()) ++times_uploads_passed_;
      if (passed != nullptr && ++passed->times_passed >= kMaxTimesPassed) break;
      continue;
    }
    if (MayRoomBeMadeFor(*generation)) {
      Cancel(held_back_.front()->sequence.id, StatusOf([] {
               return absl::AbortedError("the client reads nothing, and others need the memory");
             }));
      it = waiting_.begin();
      passed = nullptr;
      rendition_pending = false;
      continue;
    }
    // Those will free memory when they end; what fits may go first, a few times.
    if (!running_.empty() || !held_back_.empty() || rendition_pending ||
        documents_.moves_something()) {
      if (passed == nullptr) passed = generation;
      if (passed->times_passed >= kMaxTimesPassed) break;
      continue;
    }
    generation->Fail(WhyNoRoom(*generation));
    Forget(generation);
    it = waiting_.begin();
  }
}

}  // namespace folio
