#include "engine/runtime/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/short_for_now.h"

namespace folio {

EngineLoop::~EngineLoop() {
  for (; !started_.empty(); started_.pop_front()) runner_->Finish();
}

bool EngineLoop::Cancel(RequestId id, const absl::Status& reason) {
  if (scorings_.Cancel(id, reason)) return true;
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  it->second->Fail(reason);
  Forget(it->second.get());
  return true;
}

bool EngineLoop::Move(Generation* generation, Requests* from, Requests* to) {
  const auto it = std::find(from->begin(), from->end(), generation);
  if (it == from->end()) return false;
  to->splice(to->end(), *from, it);
  return true;
}

void EngineLoop::HoldBack(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Generation* generation = it->second.get();
  if (Move(generation, &running_, &held_back_) || Move(generation, &returning_, &held_back_)) {
    generation->sequence.paused = true;
  }
}

void EngineLoop::LetGoOn(RequestId id) {
  const auto it = requests_.find(id);
  if (it != requests_.end()) Move(it->second.get(), &held_back_, &returning_);
}

void EngineLoop::FailAll(const absl::Status& status) {
  while (!requests_.empty()) Cancel(requests_.begin()->first, status);
  scorings_.FailAll(status);
  documents_.FailAll(status);
}

void EngineLoop::Forget(Generation* generation) {
  scheduler_.Remove(&generation->sequence);
  for (Requests* requests : {&waiting_, &running_, &held_back_, &returning_}) {
    requests->remove(generation);
  }
  by_sequence_.erase(&generation->sequence);
  if (generation->shared_prompt != nullptr) prompts_.Leave(generation);
  if (generation->rendition != nullptr) documents_.ReleaseUser(generation->rendition);
  requests_.erase(generation->sequence.id);
}

std::optional<SteadyTime> EngineLoop::NextDeadline() const {
  std::optional<SteadyTime> next = documents_.NextUploadDeadline();
  const auto add = [&](const std::optional<SteadyTime>& deadline) {
    if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
  };
  for (const auto& [id, generation] : requests_) {
    add(generation->spec.deadline);
    add(DiskDeadline(*generation));
  }
  return next;
}

std::optional<SteadyTime> EngineLoop::DiskDeadline(const Generation& generation) const {
  const SteadyTime since = generation.submitted();
  if (generation.awaits_document) return documents_.LoadDeadline(*generation.spec.document, since);
  const Rendition* const rendition = generation.rendition;
  if (rendition == nullptr || rendition->restoring == nullptr) return std::nullopt;
  return documents_.DeadlineOf(*rendition->restoring, since);
}

void EngineLoop::ExpireDeadlines() {
  const SteadyTime now = options_.clock();
  documents_.ExpireUploads(now);
  for (auto it = requests_.begin(); it != requests_.end();) {
    const auto at = it++;  // the others stay where they are when one ends
    const std::optional<SteadyTime> of_disk = DiskDeadline(*at->second);
    if (of_disk.has_value() && *of_disk <= now) {
      Cancel(at->first, CannotReadError("the document"));
      continue;
    }
    const absl::Status status = CheckDeadline(*at->second, now);
    if (!status.ok()) Cancel(at->first, status);
  }
}

absl::Status EngineLoop::CheckDeadline(const Generation& generation, SteadyTime now) const {
  // Of what its prompt takes by itself, for steps differ.
  constexpr double kMargin = 0.5;
  const std::optional<SteadyTime>& deadline = generation.spec.deadline;
  if (!deadline.has_value()) return absl::OkStatus();
  const Sequence& sequence = generation.sequence;
  if (*deadline <= now) {
    return StatusOf([&sequence] {
      return absl::DeadlineExceededError(absl::StrCat("the deadline passed after ",
                                                      sequence.num_in_kv, " of ",
                                                      sequence.num_prompt, " prompt tokens"));
    });
  }
  if (sequence.decoding() || generation.awaits_document || !scheduler_.rates().known()) {
    return absl::OkStatus();
  }
  const double needed = scheduler_.rates().Seconds(
      {.prompt_tokens = static_cast<double>(sequence.num_known - sequence.num_in_kv),
       .prompt_work = WorkLeft(generation),
       .prompts = 1});
  const std::chrono::duration<double> left = *deadline - now;
  if (kMargin * needed <= left.count()) return absl::OkStatus();
  return StatusOf([&] {
    return absl::DeadlineExceededError(
        absl::StrCat("the first token would come after the deadline, which is in ", left.count(),
                     " s: the rest of the prompt alone takes about ", needed, " s"));
  });
}

void EngineLoop::SendProgress() {
  const SteadyTime now = options_.clock();
  int position = 0;
  for (Generation* generation : waiting_) {
    const SharedPrompt* const prompt = generation->shared_prompt;
    if (prompt != nullptr && prompt->admitted) {
      generation->SendSharedPrefill(generation->sequence.num_prompt, prompt->sequence.num_in_kv,
                                    now);
    } else if (generation->rendition != nullptr && generation->rendition->admitted) {
      generation->SendSharedPrefill(generation->sequence.num_prompt,
                                    generation->rendition->sequence.num_in_kv, now);
    } else {
      generation->SendQueued(position, now);
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
  device_failure_ = StatusOf([&status] {
    return absl::UnavailableError(
        absl::StrCat("the device failed, the server is about to restart: ", status.message()));
  });
  FailAll(device_failure_);
  if (options_.on_device_failure) options_.on_device_failure(status);
}

template <typename Cache>
void EngineLoop::FailReaders(Cache* Generation::*cache, const Cache* of,
                             const absl::Status& status) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    const auto at = it++;
    if ((*at->second).*cache == of) Cancel(at->first, status);
  }
}

void EngineLoop::FailPart(RequestId id, const Sequence* sequence, const absl::Status& status) {
  if (id != 0) {
    Cancel(id, status);
    return;
  }
  if (const SharedPrompt* prompt = prompts_.PromptOf(sequence)) {
    return FailReaders(&Generation::shared_prompt, prompt, status);
  }
  Rendition* rendition = documents_.RenditionOf(sequence);
  if (rendition == nullptr) return;
  // The last user takes a rendition that is not the upload's own with it.
  FailReaders(&Generation::rendition, rendition, status);
  rendition = documents_.RenditionOf(sequence);
  if (rendition != nullptr) documents_.FailRendition(rendition, status);
}

bool EngineLoop::RunStep() {
  if (!device_failure_.ok()) {
    FailAll(device_failure_);
    return false;
  }
  ExpireDeadlines();
  AdmitRequests();
  SendProgress();
  CompleteDocuments();
  const std::vector<ScheduledTokens>& step = scheduler_.NextStep();
  const bool failures = !scheduler_.failures().empty();
  for (const Scheduler::Failure& failure : scheduler_.failures()) {
    FailPart(failure.sequence->id, failure.sequence, StatusOf([&failure] {
               return ShortForNow(absl::StrCat("no memory for the next tokens: ",
                                               failure.status.message(), "; try again later"));
             }));
  }
  if (step.empty()) return started_.empty() ? failures : FinishStep();
  const SteadyTime begin = options_.clock();
  int64_t rows = 0;
  int64_t document_rows = 0;
  StepWork work;
  for (const ScheduledTokens& part : step) {
    rows += part.num_tokens;
    ++(part.sequence->decoding() ? work.num_answers : work.num_prompts);
    work.num_chunks += part.sequence->ChunksCompleted(part.num_tokens);
    if (documents_.RenditionOf(part.sequence) != nullptr) document_rows += part.num_tokens;
    work.prompt_work += scheduler_.WorkOf(part);
    work.answer_work += scheduler_.WorkOfAnswer(part);
  }
  slow_steps_.Begin(step);
  if (!StartStep(step)) return true;
  RepairLost(step);
  const size_t keep = runner_->runs_ahead() && MayRunAhead(step) ? 1 : 0;
  while (started_.size() > keep) {
    if (!FinishStep()) return false;
  }
  const std::chrono::duration<double> taken = options_.clock() - begin;
  work.prompt_tokens = rows - work.num_answers;
  last_step_ = {taken.count(), static_cast<int>(work.num_answers), work.prompt_tokens};
  scheduler_.NoteStep(work, taken.count());
  counters_.step_times.Note(taken.count());
  Measure(taken.count(), document_rows, rows);
  slow_steps_.End(taken.count());
  return true;
}

void EngineLoop::CompleteDocuments() {
  if (!documents_.has_incomplete()) return;
  const bool idle = requests_.empty() && scorings_.empty() && !documents_.short_of_room();
  CatchErrors([&] { documents_.GoOnCompleting(idle); }).IgnoreError();  // a later step does it
}

// Of a step with few rows the time says little: weights are read for it all the same.
void EngineLoop::Measure(double seconds, int64_t document_rows, int64_t rows) {
  constexpr int64_t kLeastRows = 64;
  if (!store_->tiered()) return;
  if (document_rows >= kLeastRows) {
    const double share = static_cast<double>(document_rows) / static_cast<double>(rows);
    restores_.NotePrefill(document_rows, seconds * share);
  }
  if (store_->home() != Tier::kDisk) return;
  const SliceReads moved = store_->reads();
  restores_.NoteRead(moved.bytes_in - measured_.bytes_in,
                     moved.seconds_waited - measured_.seconds_waited);
  measured_ = moved;
}

bool EngineLoop::StartStep(const std::vector<ScheduledTokens>& step) {
  const absl::Status started = CatchErrors([&] {
    StartedStep record{step, {}};
    for (const ScheduledTokens& part : step) {
      record.ids.push_back(part.sequence->id);
      record.num_tokens += part.num_tokens;
      record.num_requests += part.sequence->id == 0 ? 0 : 1;
      std::vector<int32_t>& tokens = *part.sequence->tokens;
      // For the token that Commit adds.
      if (part.sequence->generates && tokens.size() == tokens.capacity()) {
        tokens.reserve(2 * tokens.size() + 1);
      }
    }
    Count(step);
    started_.push_back(std::move(record));
    absl::Cleanup forget = [this] { started_.pop_back(); };
    runner_->Start(step);
    std::move(forget).Cancel();
  });
  if (started.ok()) {
    Commit(step);
  } else {
    store_->EndStep();
    for (const ScheduledTokens& part : step) FailPart(part.sequence->id, part.sequence, started);
  }
  return started.ok();
}

bool EngineLoop::MayRunAhead(const std::vector<ScheduledTokens>& step) const {
  return std::all_of(step.begin(), step.end(), [](const ScheduledTokens& part) {
    const Sequence& sequence = *part.sequence;
    return sequence.generates && sequence.num_in_kv > sequence.num_prompt &&
           !sequence.draws_follow_tokens;
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
  ModelRunner::Results results;
  const absl::Status finished = CatchErrors([&] { results = runner_->Finish(); });
  if (const absl::Status status = runner_->status(); !status.ok()) {
    OnDeviceFailure(status);
    return false;
  }
  if (finished.ok()) {
    AfterStep(step, &results);
  } else {
    FailStep(step, finished);
  }
  return true;
}

void EngineLoop::FailStep(const StartedStep& step, const absl::Status& status) {
  for (size_t n = 0; n < step.parts.size(); ++n) {
    FailPart(step.ids[n], step.parts[n].sequence, status);
  }
}

void EngineLoop::AfterStep(const StartedStep& step, ModelRunner::Results* results) {
  for (size_t n = 0; n < step.parts.size(); ++n) {
    if (step.ids[n] == 0) documents_.AfterStep(step.parts[n].sequence);
  }
  // Each of the rest fails alone.
  for (ModelRunner::Scores& scores : results->scores) {
    const RequestId id = scores.id;
    const absl::Status sent = CatchErrors([&] { AcceptScores(std::move(scores)); });
    if (!sent.ok()) Cancel(id, sent);
  }
  for (size_t n = 0; n < step.ids.size(); ++n) NoteStep(step, n);
  for (ModelRunner::Output& output : results->outputs) {
    const RequestId id = output.id;
    const absl::Status sent = CatchErrors([&] { AcceptOutput(std::move(output)); });
    if (!sent.ok()) Cancel(id, sent);
  }
}

void EngineLoop::NoteStep(const StartedStep& step, size_t part) {
  const RequestId id = step.ids[part];
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->ignores_output()) return;
  Generation* generation = it->second.get();
  const Sequence& sequence = generation->sequence;
  generation->NoteStep(step.parts[part].num_tokens, step.num_tokens, step.num_requests);
  generation->NoteMemory(store_->FootprintOf(sequence.kv));
  if (store_->tiered()) {
    generation->NoteReads(store_->home(), store_->ReadsOf(static_cast<int>(part)));
  }
  if (sequence.num_in_kv <= sequence.num_prompt) {
    generation->SendPrefill(sequence.num_prompt, sequence.num_in_kv);
    const absl::Status sent = CatchErrors([&] { generation->SendPrompt(); });
    if (!sent.ok()) Cancel(id, sent);
  }
}

void EngineLoop::AcceptScores(ModelRunner::Scores scores) {
  const auto it = requests_.find(scores.id);
  Generation* const generation = it == requests_.end() ? nullptr : it->second.get();
  if (generation != nullptr && generation->ignores_output()) return;
  if (scores.not_finite.has_value()) ++counters_.nonfinite_logits;
  if (generation == nullptr) return scorings_.AfterStep(std::move(scores));
  if (scores.not_finite.has_value()) {
    Cancel(scores.id, NotFiniteError(*scores.not_finite));
    return;
  }
  generation->TakeScores(std::move(scores));
}

void EngineLoop::AcceptOutput(ModelRunner::Output output) {
  const auto it = requests_.find(output.id);
  if (it == requests_.end()) return;  // it ended while the step ran
  Generation* generation = it->second.get();
  if (generation->ignores_output()) return;
  if (!output.sample.finite) {
    ++counters_.nonfinite_logits;
    Cancel(output.id, NotFiniteError(generation->next_position()));
    return;
  }
  const absl::Status drawn = StatusOf([&] { return generation->CheckDrawn(output.sample.token); });
  if (!drawn.ok()) {
    Cancel(output.id, drawn);
    return;
  }
  generation->NoteEvidence(store_->geometry().num_layers);
  if (!generation->Accept(std::move(output.sample))) return;
  answer_lengths_.Note(generation->spec.stop, generation->num_generated());
  Forget(generation);
}

}  // namespace folio
