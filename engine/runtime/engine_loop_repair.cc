// Pages that cannot be read any more: what was computed from them is computed again.
#include <algorithm>
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/runtime/engine_loop.h"

namespace folio {

void EngineLoop::RepairLost(const std::vector<ScheduledTokens>& step) {
  if (!store_->has_lost_pages()) return;
  const absl::Status failed = CatchErrors([&] {
    std::vector<RequestId> requests;
    std::vector<const Sequence*> prompts;  // any: those that are lost are repaired
    std::vector<Rendition*> renditions;
    const auto add = [&](Rendition* rendition) {
      if (rendition == nullptr || !store_->HasLostPages(rendition->sequence.kv)) return;
      if (std::find(renditions.begin(), renditions.end(), rendition) != renditions.end()) return;
      renditions.push_back(rendition);
    };
    for (const ScheduledTokens& part : step) {
      if (!store_->HasLostPages(part.sequence->kv)) continue;
      add(documents_.RenditionOf(part.sequence));
      for (const auto& [id, generation] : requests_) {
        const SharedPrompt* const prompt = generation->shared_prompt;
        const Sequence* const shared = prompt == nullptr ? nullptr : &prompt->sequence;
        if (&generation->sequence != part.sequence && shared != part.sequence) continue;
        add(generation->rendition);
        prompts.push_back(shared);
      }
      if (part.sequence->id != 0) requests.push_back(part.sequence->id);
    }
    for (Rendition* rendition : renditions) RepairRendition(rendition);
    for (const Sequence* sequence : prompts) RepairPrompt(prompts_.PromptOf(sequence));
    for (const RequestId id : requests) RepairRequest(id);
  });
  if (!failed.ok()) FailAll(failed);
}

void EngineLoop::RepairRendition(Rendition* rendition) {
  const Sequence* const sequence = &rendition->sequence;
  std::vector<Generation*> again;
  std::vector<RequestId> others;
  for (const auto& [id, generation] : requests_) {
    if (generation->rendition != rendition) continue;
    if (rendition->document != nullptr && generation->MayBeginAgain()) {
      again.push_back(generation.get());
    } else {
      others.push_back(id);
    }
  }
  for (Generation* generation : again) LetGoOfRendition(generation);
  for (const RequestId id : others) Cancel(id, LostPagesError());
  // The last one that has let go may have taken it along.
  if (Rendition* const left = documents_.RenditionOf(sequence)) documents_.Repair(left);
  for (Generation* generation : again) {
    const absl::Status begun = CatchErrors([&] { Begin(generation); });
    if (!begun.ok()) Cancel(generation->sequence.id, begun);
  }
}

void EngineLoop::RepairPrompt(SharedPrompt* prompt) {
  if (prompt == nullptr || !store_->HasLostPages(prompt->sequence.kv)) return;
  std::vector<Generation*> again;
  std::vector<RequestId> others;
  for (const auto& [id, generation] : requests_) {
    if (generation->shared_prompt != prompt) continue;
    if (generation->MayBeginAgain()) {
      again.push_back(generation.get());
    } else {
      others.push_back(id);
    }
  }
  for (Generation* generation : again) {
    BeginAgain(generation);
    LetGoOfPrompt(generation);
  }
  for (const RequestId id : others) Cancel(id, LostPagesError());
  for (Generation* generation : again) {
    const absl::Status joined = CatchErrors([&] { prompts_.Join(generation); });
    if (!joined.ok()) Cancel(generation->sequence.id, joined);
  }
}

void EngineLoop::RepairRequest(RequestId id) {
  const auto it = requests_.find(id);
  Generation* const generation = it == requests_.end() ? nullptr : it->second.get();
  if (generation != nullptr && generation->ignores_output()) return;  // with its document
  if (generation != nullptr && generation->MayBeginAgain()) return BeginAgain(generation);
  Cancel(id, LostPagesError());
}

void EngineLoop::BeginAgain(Generation* generation) {
  scheduler_.Remove(&generation->sequence);
  for (Requests* requests : {&running_, &held_back_, &returning_}) {
    Move(generation, requests, &waiting_);
  }
  generation->claim().remaining = scheduler_.WorkLeft(generation->sequence);
  generation->BeginAgain();
}

// It computes its own, or joins another one.
void EngineLoop::LetGoOfPrompt(Generation* generation) {
  const bool was_found = generation->cached_tokens == generation->shared_prompt->sequence.num_known;
  prompts_.Leave(generation);
  const Sequence* const document = generation->sequence.prefix;
  if (was_found) SetCached(generation, document == nullptr ? 0 : document->num_in_kv);
}

void EngineLoop::LetGoOfRendition(Generation* generation) {
  BeginAgain(generation);
  if (generation->shared_prompt != nullptr) prompts_.Leave(generation);
  by_sequence_.erase(&generation->sequence);
  counters_.cached_tokens -= std::exchange(generation->cached_tokens, 0);
  generation->sequence.prefix = nullptr;
  documents_.ReleaseUser(std::exchange(generation->rendition, nullptr));
}

}  // namespace folio
