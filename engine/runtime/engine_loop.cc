#include "engine/runtime/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/prompt_truncation.h"

namespace folio {
namespace {

// Requests that fit may be admitted so often before an earlier one that does not, which is not
// starved by them.
constexpr int kMaxTimesPassed = 8;

}  // namespace

void EngineLoop::Submit(RequestId id, std::unique_ptr<Generation> owned) {
  Generation* generation = owned.get();
  const GenerateSpec& spec = generation->spec;
  Sequence& sequence = generation->sequence;
  sequence.id = id;
  int64_t document_tokens = 0;
  const bool truncated = PlanFor(spec.attention, options_.model).truncation.enabled();
  if (spec.document.has_value()) {
    Document* document = documents_.Find(*spec.document);
    if (document == nullptr) return generation->Fail(documents_.WhyGone(*spec.document));
    if (truncated) {
      // What is cut depends on the question: nothing of the document's cache can be used.
      sequence.tokens->insert(sequence.tokens->begin(), document->tokens->begin(),
                              document->tokens->end());
    } else {
      document_tokens = static_cast<int64_t>(document->tokens->size());
      generation->rendition = documents_.Acquire(document, spec.attention);
      generation->cached_tokens = generation->rendition->sequence.num_in_kv;
      sequence.prefix = &generation->rendition->sequence;
    }
  }
  sequence.plan = PlanFor(spec.attention, options_.model,
                          document_tokens + static_cast<int64_t>(sequence.tokens->size()));
  if (truncated) {
    *sequence.tokens =
        TruncatePrompt(sequence.plan.truncation, *sequence.tokens, spec.stop.max_new_tokens);
    sequence.plan.prompt_tokens = static_cast<int64_t>(sequence.tokens->size());
  }
  sequence.tokens_begin = document_tokens;
  sequence.num_known = sequence.num_prompt =
      document_tokens + static_cast<int64_t>(sequence.tokens->size());
  sequence.max_tokens = sequence.num_prompt + spec.stop.max_new_tokens;
  counters_.cached_tokens += generation->cached_tokens;
  by_sequence_[&sequence] = generation;
  waiting_.push_back(generation);
  requests_.emplace(id, std::move(owned));
}

EngineLoop::~EngineLoop() {
  for (; !started_.empty(); started_.pop_front()) runner_->Finish();
}

void EngineLoop::Cancel(RequestId id, absl::Status reason) {
  if (scorings_.Cancel(id, reason)) return;
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->Fail(std::move(reason));
  Forget(it->second.get());
}

void EngineLoop::HoldBack(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Generation* generation = it->second.get();
  if (std::erase(running_, generation) == 0 && returning_.remove(generation) == 0) return;
  generation->sequence.paused = true;
  held_back_.push_back(generation);
}

void EngineLoop::LetGoOn(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || held_back_.remove(it->second.get()) == 0) return;
  returning_.push_back(it->second.get());
}

void EngineLoop::AdmitReturning() {
  while (!returning_.empty() && num_running() < options_.max_running_requests) {
    Generation* generation = returning_.front();
    returning_.pop_front();
    generation->sequence.paused = false;
    running_.push_back(generation);
  }
}

void EngineLoop::FailAll(const absl::Status& status) {
  while (!requests_.empty()) Cancel(requests_.begin()->first, status);
  scorings_.FailAll(status);
  documents_.FailAll(status);
}

void EngineLoop::Forget(Generation* generation) {
  scheduler_.Remove(&generation->sequence);
  waiting_.remove(generation);
  std::erase(running_, generation);
  held_back_.remove(generation);
  returning_.remove(generation);
  by_sequence_.erase(&generation->sequence);
  if (generation->rendition != nullptr) documents_.ReleaseUser(generation->rendition);
  requests_.erase(generation->sequence.id);
}

std::optional<SteadyTime> EngineLoop::NextDeadline() const {
  std::optional<SteadyTime> next;
  for (const auto& [id, generation] : requests_) {
    const std::optional<SteadyTime>& deadline = generation->spec.deadline;
    if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
  }
  return next;
}

void EngineLoop::ExpireDeadlines() {
  const SteadyTime now = std::chrono::steady_clock::now();
  std::vector<RequestId> expired;
  for (const auto& [id, generation] : requests_) {
    if (generation->spec.deadline.has_value() && *generation->spec.deadline <= now) {
      expired.push_back(id);
    }
  }
  for (RequestId id : expired) {
    const Generation& generation = *requests_.at(id);
    Cancel(id, absl::DeadlineExceededError(
                   absl::StrCat("the deadline passed after ", generation.sequence.num_in_kv, " of ",
                                generation.sequence.num_prompt, " prompt tokens")));
  }
}

int64_t EngineLoop::waiting_prefill_tokens() const {
  int64_t tokens = 0;
  for (const Generation* generation : waiting_) {
    tokens += generation->sequence.num_prompt - generation->cached_tokens;
  }
  return tokens;
}

EngineLoop::Admission EngineLoop::TryAdmit(Generation* generation) {
  Rendition* rendition = generation->rendition;
  if (rendition != nullptr && !rendition->complete()) {
    if (rendition->admitted) return Admission::kNotYet;
    rendition->admitted = scheduler_.Admit(&rendition->sequence);
    return rendition->admitted ? Admission::kNotYet : Admission::kNoMemory;
  }
  if (num_running() >= options_.max_running_requests) return Admission::kNoPlace;
  return scheduler_.Admit(&generation->sequence) ? Admission::kAdmitted : Admission::kNoMemory;
}

bool EngineLoop::MayRoomBeMadeFor(const Generation& generation) const {
  const Rendition* rendition = generation.rendition;
  const bool of_rendition = rendition != nullptr && !rendition->complete();
  int64_t room = store_->capacity_bytes() - store_->reserved_bytes();
  for (const Generation* held_back : held_back_) room += held_back->sequence.reserved_bytes;
  return !held_back_.empty() &&
         room >= scheduler_.BytesNeeded(of_rendition ? rendition->sequence : generation.sequence);
}

void EngineLoop::AdmitWaiting() {
  bool rendition_pending = false;
  Generation* passed = nullptr;  // the first one that memory is short for
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Generation* generation = *it++;
    const Admission admission = TryAdmit(generation);
    if (admission == Admission::kNoPlace) break;
    if (admission == Admission::kNotYet) {
      rendition_pending = true;
      continue;
    }
    if (admission == Admission::kAdmitted) {
      waiting_.remove(generation);
      running_.push_back(generation);
      generation->Admit(options_.vocab_size);
      if (passed != nullptr && ++passed->times_passed >= kMaxTimesPassed) break;
      continue;
    }
    if (MayRoomBeMadeFor(*generation)) {
      Cancel(held_back_.front()->sequence.id,
             absl::AbortedError("the client reads nothing, and others need the memory"));
      it = waiting_.begin();
      passed = nullptr;
      rendition_pending = false;
      continue;
    }
    // Those will free memory when they end; what fits may go first, a few times.
    if (!running_.empty() || !held_back_.empty() || rendition_pending) {
      if (passed == nullptr) passed = generation;
      if (passed->times_passed >= kMaxTimesPassed) break;
      continue;
    }
    generation->Fail(absl::ResourceExhaustedError(absl::StrCat(
        "the request needs ", scheduler_.BytesNeeded(generation->sequence),
        " bytes of KV cache beside the documents, which hold ", store_->reserved_bytes(), " of ",
        store_->capacity_bytes(), ": delete documents or raise --kv-bytes")));
    Forget(generation);
    it = waiting_.begin();
  }
}

void EngineLoop::SendProgress() {
  int position = 0;
  for (Generation* generation : waiting_) {
    if (generation->rendition != nullptr && generation->rendition->admitted) {
      generation->SendPrefill(generation->sequence.num_prompt,
                              generation->rendition->sequence.num_in_kv);
    } else {
      generation->SendQueued(position);
    }
    ++position;
  }
}

void EngineLoop::Count(const std::vector<ScheduledTokens>& step) {
  ++counters_.steps;
  for (const ScheduledTokens& part : step) {
    const bool decoding = part.sequence->decoding();
    (decoding ? counters_.decode_tokens : counters_.prefill_tokens) += part.num_tokens;
    if (decoding) by_sequence_.at(part.sequence)->NoteDecode(part.sequence->num_in_kv);
  }
}

void EngineLoop::OnDeviceFailure(const absl::Status& status) {
  device_failure_ = absl::UnavailableError(
      absl::StrCat("the device failed, the server is about to restart: ", status.message()));
  FailAll(device_failure_);
  if (options_.on_device_failure) options_.on_device_failure(status);
}

void EngineLoop::FailSequence(const Scheduler::Failure& failure) {
  const absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "no memory for the next tokens: ", failure.status.message(), "; try again later"));
  Rendition* rendition = documents_.RenditionOf(failure.sequence);
  if (rendition == nullptr) return Cancel(failure.sequence->id, status);
  std::vector<RequestId> users;
  for (const auto& [id, generation] : requests_) {
    if (generation->rendition == rendition) users.push_back(id);
  }
  // The last user takes a rendition that is not the upload's own with it.
  for (RequestId id : users) Cancel(id, status);
  rendition = documents_.RenditionOf(failure.sequence);
  if (rendition != nullptr) documents_.FailRendition(rendition, status);
}

bool EngineLoop::RunStep() {
  if (!device_failure_.ok()) {
    FailAll(device_failure_);
    return false;
  }
  ExpireDeadlines();
  AdmitReturning();
  AdmitWaiting();
  SendProgress();
  std::vector<Scheduler::Failure> failures;
  const std::vector<ScheduledTokens> step = scheduler_.NextStep(&failures);
  for (const Scheduler::Failure& failure : failures) FailSequence(failure);
  if (step.empty()) return started_.empty() ? !failures.empty() : FinishStep();
  Count(step);
  runner_->Start(step);
  StartedStep& started = started_.emplace_back();
  started.parts = step;
  for (const ScheduledTokens& part : step) started.ids.push_back(part.sequence->id);
  Commit(step);
  const size_t keep = runner_->runs_ahead() && MayRunAhead(step) ? 1 : 0;
  while (started_.size() > keep) {
    if (!FinishStep()) return false;
  }
  return true;
}

bool EngineLoop::MayRunAhead(const std::vector<ScheduledTokens>& step) const {
  return std::all_of(step.begin(), step.end(), [](const ScheduledTokens& part) {
    const Sequence& sequence = *part.sequence;
    // A repetition penalty needs the last token.
    return sequence.generates && sequence.num_in_kv > sequence.num_prompt &&
           sequence.draw.seen == nullptr;
  });
}

void EngineLoop::Commit(const std::vector<ScheduledTokens>& step) {
  scheduler_.Commit(step);
  for (const ScheduledTokens& part : step) {
    Sequence* sequence = part.sequence;
    if (!sequence->generates || sequence->num_pending() > 0) continue;
    sequence->tokens->push_back(kNotDrawnYet);
    ++sequence->num_known;
  }
}

bool EngineLoop::FinishStep() {
  const StartedStep step = std::move(started_.front());
  started_.pop_front();
  ModelRunner::Results results = runner_->Finish();
  if (const absl::Status status = runner_->status(); !status.ok()) {
    OnDeviceFailure(status);
    return false;
  }
  AfterStep(step, std::move(results));
  return true;
}

void EngineLoop::AfterStep(const StartedStep& step, ModelRunner::Results results) {
  std::vector<ScheduledTokens> of_documents;
  for (size_t n = 0; n < step.parts.size(); ++n) {
    if (step.ids[n] == 0) of_documents.push_back(step.parts[n]);
  }
  documents_.AfterStep(of_documents);
  for (const ModelRunner::Scores& scores : results.scores) {
    if (scores.not_finite.has_value()) ++counters_.nonfinite_logits;
  }
  scorings_.AfterStep(results.scores);
  for (const RequestId id : step.ids) {
    const auto it = requests_.find(id);
    if (it == requests_.end()) continue;
    Generation* generation = it->second.get();
    const Sequence& sequence = generation->sequence;
    generation->NoteMemory(store_->OwnPageBytes(sequence.kv), store_->SharedPageBytes(sequence.kv),
                           store_->SummaryBytes(sequence.kv));
    if (sequence.num_in_kv <= sequence.num_prompt) {
      generation->SendPrefill(sequence.num_prompt, sequence.num_in_kv);
    }
  }
  for (ModelRunner::Output& output : results.outputs) {
    const auto it = requests_.find(output.id);
    if (it == requests_.end()) continue;  // it ended while the step ran
    Generation* generation = it->second.get();
    if (!output.sample.finite) {
      ++counters_.nonfinite_logits;
      Cancel(output.id, NotFiniteError(generation->next_position()));
      continue;
    }
    generation->NoteEvidence(store_->geometry().num_layers);
    if (generation->Accept(std::move(output.sample))) Forget(generation);
  }
}

}  // namespace folio
