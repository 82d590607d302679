// How requests come into the loop: what they read, and when memory and places are there for them.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/base/catch_errors.h"
#include "engine/runtime/engine_loop.h"
#include "engine/runtime/shortage.h"

namespace folio {
namespace {

// Requests that fit may be admitted so often before an earlier one that does not, which is not
// starved by them.
constexpr int kMaxTimesPassed = 8;

}  // namespace

void EngineLoop::Submit(RequestId id, std::unique_ptr<Generation> owned) {
  Generation* generation = owned.get();
  generation->sequence.id = id;
  if (const TenantPtr& tenant = generation->spec.tenant) generation->claim().share().Set(tenant);
  scheduler_.Join(&generation->sequence);
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
  prompts_.Join(generation);
  generation->claim().remaining = scheduler_.WorkLeft(generation->sequence);
  const auto is_beside = [generation](const auto& one) {
    return one.second.get() != generation &&
           one.second->claim().tenant == generation->claim().tenant;
  };
  const bool together = std::any_of(requests_.begin(), requests_.end(), is_beside);
  arrivals_.Note(Describe(*generation), together, options_.clock());
}

void EngineLoop::SetCached(Generation* generation, int64_t tokens) {
  counters_.cached_tokens += tokens - std::exchange(generation->cached_tokens, tokens);
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
    SetCached(generation, rendition->restoring_tokens);
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

int64_t EngineLoop::PromptLeft(const Generation& generation) {
  const SharedPrompt* const prompt = generation.shared_prompt;
  const bool finds_it = prompt != nullptr && prompt->IsFoundBy(generation);
  return finds_it ? 1 : generation.sequence.num_prompt - generation.cached_tokens;
}

int64_t EngineLoop::waiting_prefill_tokens() const {
  int64_t tokens = 0;
  for (const Generation* generation : waiting_) tokens += PromptLeft(*generation);
  return tokens;
}

void EngineLoop::AdmitReturning() {
  while (!returning_.empty() && num_running() < options_.max_running_requests) {
    returning_.front()->sequence.paused = false;
    Move(returning_.front(), &returning_, &running_);
  }
}

bool EngineLoop::HasPendingCache() const {
  const auto pends = [](const auto* cache) {
    return cache != nullptr && cache->admitted && !cache->complete();
  };
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Generation* generation) {
    return pends(generation->rendition) || pends(generation->shared_prompt);
  });
}

bool EngineLoop::SomethingRuns() const {
  return !running_.empty() || !held_back_.empty() || !returning_.empty() || !scorings_.empty() ||
         documents_.moves_something() || HasPendingCache();
}

void EngineLoop::AdmitDocuments() {
  if (documents_.short_of_room()) documents_.MakeRoom(SomethingRuns() || prompts_.hold_memory());
  if (!documents_.short_of_room()) times_uploads_passed_ = 0;
}

EngineLoop::Admission EngineLoop::TryAdmitPrompt(Generation* generation, int64_t needed) {
  if (!documents_.EvictFor(needed)) return Admission::kNoMemory;
  SharedPrompt* const prompt = generation->shared_prompt;
  prompt->admitted = scheduler_.Admit(&prompt->sequence);
  if (prompt->admitted && prompt->payer == 0) prompt->payer = generation->sequence.id;
  return prompt->admitted ? Admission::kNotYet : Admission::kNoMemory;
}

EngineLoop::Admission EngineLoop::TryAdmitRequest(Generation* generation) {
  if (generation->awaits_document) return Admission::kNotYet;
  const TenantShare& share = generation->claim().share();
  Rendition* rendition = generation->rendition;
  if (rendition != nullptr && !rendition->complete()) {
    if (rendition->admitted) return Admission::kNotYet;
    rendition->admitted = scheduler_.Admit(&rendition->sequence);
    if (!rendition->admitted) return Admission::kNoMemory;
    Restore(rendition, *generation);
    return Admission::kNotYet;
  }
  const SharedPrompt* const prompt = generation->shared_prompt;
  const bool awaits_prompt = prompt != nullptr && !prompt->complete();
  if (prompt != nullptr) generation->claim().remaining = scheduler_.WorkLeft(generation->sequence);
  if (awaits_prompt && prompt->admitted) return Admission::kNotYet;
  const int64_t needed = BytesLacking(*generation);
  if (!share.MayAdmit() || !share.MayReserve(needed)) return Admission::kBoundReached;
  if (num_running() >= options_.max_running_requests) return Admission::kNoPlace;
  const int64_t capacity = store_->capacity_bytes();
  const int64_t free_bytes = capacity - store_->reserved_bytes() + documents_.evictable_bytes();
  if (!FairShare::LeavesRoom(share, needed, free_bytes, capacity)) {
    return Admission::kKeptForOthers;
  }
  if (awaits_prompt) return TryAdmitPrompt(generation, needed);
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
  const Rendition* const rendition = generation.rendition;
  if (rendition != nullptr && !rendition->complete()) {
    return scheduler_.BytesNeeded(rendition->sequence);
  }
  const SharedPrompt* const prompt = generation.shared_prompt;
  const int64_t own = scheduler_.BytesNeeded(generation.sequence);
  return prompt == nullptr || prompt->admitted ? own
                                               : own + scheduler_.BytesNeeded(prompt->sequence);
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
  if (!SomethingRuns()) AdmitDocuments();  // shared prompts may have let go of memory
}

EngineLoop::Admission EngineLoop::TryAdmitInstead(Generation* generation) {
  Generation* const gives_way = FairShare::WhoGivesWay(generation, running_);
  if (gives_way == nullptr) return Admission::kNoPlace;
  Move(gives_way, &running_, &returning_);
  const Admission admission = TryAdmit(generation);
  if (admission == Admission::kAdmitted) {
    gives_way->sequence.paused = true;
    gives_way->NotePreempted();
  } else {
    Move(gives_way, &returning_, &running_);
  }
  return admission;
}

bool EngineLoop::LetGoOfPrompts(Generation* generation, const TenantShare* tenant) {
  if (prompts_.LetGo(generation->shared_prompt, tenant)) return true;
  if (generation->shared_prompt == nullptr) return false;
  prompts_.LetGo(nullptr, tenant);
  LetGoOfPrompt(generation);
  return true;
}

bool EngineLoop::AwaitTenant(Generation* generation, Look* look) {
  generation->Await(Generation::Wait::kTurn, look->now);
  const TenantShare& share = generation->claim().share();
  if (share.admitted > 0 || look->cache_pending) return true;
  if (LetGoOfPrompts(generation, &share)) return false;
  generation->Fail(StatusOf([&] {
    return NoRoomForTenant({.who = "the request",
                            .needed_bytes = BytesLacking(*generation),
                            .kept_bytes = share.reserved_bytes},
                           share.tenant->limits.max_kv_bytes);
  }));
  Forget(generation);
  return false;
}

// Where others may pass no more, those of its tenant wait; all, if that has nothing that ends.
void EngineLoop::AwaitMemory(Generation* generation, Look* look) {
  generation->Await(Generation::Wait::kMemory, look->now);
  if (generation->times_passed < kMaxTimesPassed) return;
  TenantShare& share = generation->claim().share();
  share.blocked = true;
  if (share.admitted == 0) look->all_wait = Generation::Wait::kMemory;
}

bool EngineLoop::AwaitMemoryOrEnd(Generation* generation, Look* look) {
  if (MayRoomBeMadeFor(*generation)) {
    Cancel(held_back_.front()->sequence.id, StatusOf([] {
             return absl::AbortedError("the client reads nothing, and others need the memory");
           }));
    return false;
  }
  // Those will free memory when they end; what fits may go first, a few times.
  if (!running_.empty() || !held_back_.empty() || look->cache_pending ||
      documents_.moves_something()) {
    AwaitMemory(generation, look);
    return true;
  }
  if (LetGoOfPrompts(generation, nullptr)) return false;
  generation->Fail(WhyNoRoom(*generation));
  Forget(generation);
  return false;
}

void EngineLoop::AwaitCache(Generation* generation, Look* look) {
  const SharedPrompt* const prompt = generation->shared_prompt;
  const bool is_prompt = prompt != nullptr && prompt->admitted;
  generation->Await(is_prompt ? Generation::Wait::kPrompt : Generation::Wait::kDocument, look->now);
  look->cache_pending = true;
}

void EngineLoop::TakePlace(Generation* generation, Look* look) {
  // Before it moves: those before it that found no memory are passed by it.
  for (auto it = waiting_.begin(); *it != generation; ++it) {
    if ((*it)->awaited() != Generation::Wait::kMemory) continue;
    ++(*it)->times_passed;
    AwaitMemory(*it, look);
  }
  Move(generation, &waiting_, &running_);
  const SharedPrompt* const prompt = generation->shared_prompt;
  if (prompt != nullptr && prompt->IsFoundBy(*generation)) {
    SetCached(generation, prompt->sequence.num_known);
  }
  ++generation->claim().share().admitted;
  generation->Admit();
  if (documents_.short_of_room()) ++times_uploads_passed_;
}

bool EngineLoop::LookAtWaiting() {
  Look look{options_.clock(), HasPendingCache(), {}};
  FindLate(look.now);
  scheduler_.shares().TakeTurns({&running_, &returning_, &held_back_}, &waiting_);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (times_uploads_passed_ >= kMaxTimesPassed && SomethingRuns()) {
      look.all_wait = Generation::Wait::kMemory;
    }
    Generation* const generation = *it++;
    if (look.all_wait.has_value() || generation->claim().share().blocked) {
      generation->Await(look.all_wait.value_or(Generation::Wait::kMemory), look.now);
      continue;
    }
    Admission admission = TryAdmit(generation);
    if (admission == Admission::kNoPlace) admission = TryAdmitInstead(generation);
    switch (admission) {
      case Admission::kAdmitted:
        TakePlace(generation, &look);
        break;
      case Admission::kNotYet:
        AwaitCache(generation, &look);
        break;
      case Admission::kNoPlace:
        look.all_wait = Generation::Wait::kTurn;
        generation->Await(*look.all_wait, look.now);
        break;
      case Admission::kBoundReached:
        if (!AwaitTenant(generation, &look)) return false;
        break;
      case Admission::kKeptForOthers:
        AwaitMemory(generation, &look);
        break;
      case Admission::kNoMemory:
        if (!AwaitMemoryOrEnd(generation, &look)) return false;
        break;
      case Admission::kFailed:
        break;
    }
  }
  return true;
}

void EngineLoop::AdmitWaiting() {
  while (!LookAtWaiting()) {
  }
}

}  // namespace folio
