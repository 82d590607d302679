// What the engine says of answers, and what becomes of it. Pump thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/answer_call.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

v1::Heartbeat::Phase ToProto(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return v1::Heartbeat::PHASE_QUEUED;
    case Phase::kPrefill:
      return v1::Heartbeat::PHASE_PREFILL;
    case Phase::kDecode:
      return v1::Heartbeat::PHASE_DECODE;
  }
  return v1::Heartbeat::PHASE_UNSPECIFIED;
}

CallPhase ToCallPhase(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return CallPhase::kQueued;
    case Phase::kPrefill:
      return CallPhase::kPrefill;
    case Phase::kDecode:
      return CallPhase::kDecode;
  }
  return CallPhase::kReading;
}

}  // namespace

template <typename Wire>
void AnswerCall<Wire>::HandleOf(size_t index, const Event& event) {
  if (!saw_accepted_) {
    MutexLock wait_for_accepted(&mu_);
    saw_accepted_ = true;
  }
  Answer* const answer = &answers_[index];
  const SteadyTime now = context_->clock();
  if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
    OnDelta(answer, *delta, now);
  } else if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    EnterPhase(answer, Phase::kPrefill, now);
    const int64_t computed = prefill->processed_tokens - prefill->cached_tokens;
    listed_->AddComputedTokens(computed - std::exchange(answer->num_computed, computed));
    if (has_document_) {
      answer->document_use = prefill->cached_tokens > 0 ? DocumentUse::kHit : DocumentUse::kMiss;
    }
    v1::GenerateEvent out;
    ToProto(*prefill, &out);
    Send(answer, std::move(out));
  } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    v1::GenerateEvent out;
    ToProto(*prompt, &out);
    Send(answer, std::move(out));
  } else if (const auto* queued = std::get_if<QueuedEvent>(&event)) {
    v1::GenerateEvent out;
    out.mutable_queued()->set_position(static_cast<uint32_t>(queued->position));
    Send(answer, std::move(out));
  } else if (const auto* evidence = std::get_if<EvidenceEvent>(&event)) {
    OnEvidence(answer, *evidence);
  } else if (const auto* completed = std::get_if<CompletedEvent>(&event)) {
    OnCompleted(answer, *completed, now);
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    OnFailed(answer, *failed);
  }
  CheckReader(now);
}

template <typename Wire>
void AnswerCall<Wire>::OnDelta(Answer* answer, const DeltaEvent& delta, SteadyTime now) {
  EnterPhase(answer, Phase::kDecode, now);
  const auto count = static_cast<int64_t>(delta.tokens.size());
  listed_->AddCompletionTokens(count);
  caller_.calls->TakeTokens(count, now);
  answer->metrics->generated_tokens->Increment(static_cast<double>(count));
  if (answer->last_token == SteadyTime{}) {
    answer->metrics->first_token_seconds[static_cast<size_t>(answer->document_use)]->Observe(
        Seconds(arrived_, now));
  } else {
    answer->metrics->inter_token_seconds->Observe(Seconds(answer->last_token, now));
  }
  answer->last_token = now;
  v1::GenerateEvent out;
  ToProto(delta, &out);
  Send(answer, std::move(out));
}

template <typename Wire>
void AnswerCall<Wire>::OnEvidence(Answer* answer, const EvidenceEvent& evidence) {
  for (size_t layer = 0; layer < evidence.layers.size(); ++layer) {
    v1::GenerateEvent out;
    *out.mutable_layer_evidence() = ToProto(evidence, layer);
    Send(answer, std::move(out));
  }
  if (!wants_spans_) return;
  v1::GenerateEvent out;
  ToProto(evidence, context_->engine()->tokenizer(), answer->upload.get(), &out);
  Send(answer, std::move(out));
}

template <typename Wire>
void AnswerCall<Wire>::OnCompleted(Answer* answer, const CompletedEvent& completed,
                                   SteadyTime now) {
  context_->metrics->OnCompleted(completed, Seconds(arrived_, now));
  listed_->AddCachedTokens(completed.usage.cached_tokens);
  listed_->AddSteps(completed.scheduling.num_steps);
  context_->rate.OnFinished(now);
  v1::GenerateEvent out;
  ToProto(completed, &out);
  Send(answer, std::move(out));
  EndAnswer(answer, grpc::Status::OK);
}

template <typename Wire>
void AnswerCall<Wire>::OnFailed(Answer* answer, const FailedEvent& failed) {
  const std::string phase = PhaseName(failed.phase);
  context_->metrics->OnFailed(failed.status, phase);
  context_->rate.OnFinished(context_->clock());
  const grpc::Status status = ToGrpcStatus(failed.status, {{}, {{"phase", phase}}, {}});
  if constexpr (requires { Wire::Failed(answer->place, status); }) {
    if (!end_reason().has_value()) writes_.Push(Wire::Failed(answer->place, status));
  }
  EndAnswer(answer, status);
}

template <typename Wire>
void AnswerCall<Wire>::EnterPhase(Answer* answer, Phase phase, SteadyTime now) {
  if (answer->phase == phase) return;
  answer->phase = phase;
  listed_->EnterPhase(ToCallPhase(this->phase()), now);
}

template <typename Wire>
void AnswerCall<Wire>::EndAnswer(Answer* answer, const grpc::Status& status) {
  answer->ended = true;
  ++num_ended_;
  if (status.ok()) ++num_completed_;
  if (!status.ok() && first_failure_.ok()) first_failure_ = status;
  if (num_ended_ < answers_.size()) return;
  writes_.Finish(num_completed_ > 0 && !end_reason().has_value() ? grpc::Status::OK
                                                                 : first_failure_);
}

template <typename Wire>
void AnswerCall<Wire>::CheckReader(SteadyTime now) {
  if (reader_.MustAbort(now)) return AbortSlowReader();
  if (reader_.aborted()) {
    MutexLock lock(&mu_);
    if (!done_ && reader_.MustCancel(now)) rpc_->TryCancel();
    return;
  }
  const int64_t limit = context_->options.requests.max_stream_buffer_bytes;
  const auto waiting_bytes = static_cast<int64_t>(writes_.waiting_bytes());
  if (waiting_bytes > limit || reader_.Stalled(now)) {
    SetHeldBack(true);
  } else if (waiting_bytes <= limit / 2) {
    SetHeldBack(false);
  }
}

template <typename Wire>
void AnswerCall<Wire>::SetHeldBack(bool held_back) {
  if (held_back == held_back_) return;
  held_back_ = held_back;
  MutexLock lock(&mu_);
  for (const RequestId id : ids_) {
    held_back ? context_->engine()->HoldBack(id) : context_->engine()->LetGoOn(id);
  }
}

template <typename Wire>
void AnswerCall<Wire>::AbortSlowReader() {
  const absl::Status status = absl::AbortedError(
      absl::StrCat("the client has read nothing for ", reader_.patience().count(), " s"));
  writes_.Abort(ToGrpcStatus(status, {"SLOW_CONSUMER", {{"phase", PhaseName(phase())}}, {}}));
  EndEarly(status);
}

template <typename Wire>
bool AnswerCall<Wire>::submitted() const {
  MutexLock lock(&mu_);
  return !ids_.empty();
}

template <typename Wire>
typename AnswerCall<Wire>::Answer* AnswerCall<Wire>::Running() {
  const auto running = std::find_if(answers_.begin(), answers_.end(),
                                    [](const Answer& answer) { return !answer.ended; });
  return running == answers_.end() ? nullptr : &*running;
}

template <typename Wire>
Phase AnswerCall<Wire>::phase() {
  const Answer* const running = Running();
  return running == nullptr ? Phase::kDecode : running->phase;
}

template <typename Wire>
void AnswerCall<Wire>::Tick(SteadyTime now) {
  // Heartbeats follow Accepted; tokens take at most some seconds to find.
  if (!submitted()) return;
  CheckReader(now);
  if (now - last_event_ < heartbeat_ - 2 * EventPump::kTick || writes_.final_code().has_value()) {
    return;
  }
  Answer* const running = Running();
  if (running == nullptr) return;
  v1::GenerateEvent event;
  event.mutable_heartbeat()->set_phase(ToProto(running->phase));
  Send(running, std::move(event));
}

template class AnswerCall<GenerateWire>;
template class AnswerCall<AskManyWire>;

}  // namespace folio::server
