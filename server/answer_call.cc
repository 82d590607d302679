#include "server/answer_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "server/client_of.h"
#include "server/logging.h"
#include "server/request_id.h"
#include "server/request_mapping.h"

namespace folio::server {
namespace {

constexpr uint32_t kDefaultHeartbeatMs = 5000;

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

// max: there is none. gRPC's can be further away than std::chrono counts, in nanoseconds to the
// year 2262, and its own conversion overflows then.
std::chrono::system_clock::time_point DeadlineOf(const grpc::CallbackServerContext& rpc) {
  using Time = std::chrono::system_clock::time_point;
  constexpr auto kLast =
      std::chrono::duration_cast<std::chrono::seconds>(Time::max().time_since_epoch());
  const gpr_timespec deadline = gpr_convert_clock_type(rpc.raw_deadline(), GPR_CLOCK_REALTIME);
  return deadline.tv_sec < kLast.count() ? rpc.deadline() : Time::max();
}

// At most, for one that is not read: it may be text or, in each byte, an id.
template <typename Wire>
int64_t MemoryFor(const Incoming<typename Wire::Request>& incoming, const Tokenizer& tokenizer) {
  if (incoming.is_read()) return Wire::MemoryFor(incoming.message(), tokenizer);
  constexpr size_t kOfId = sizeof(uint32_t) + sizeof(int32_t);
  const size_t most = 1 + std::max(kOfId, tokenizer.encode_bytes_per_byte());
  return static_cast<int64_t>(most * incoming.bytes());
}

v1::GenerateEvent AcceptedEvent(const GenerateQuestion& question) {
  const GenerateSpec& spec = question.spec;
  v1::GenerateEvent event;
  v1::Accepted* accepted = event.mutable_accepted();
  *accepted->mutable_strategy() = server::ToProto(spec.attention.strategy);
  *accepted->mutable_position() = server::ToProto(spec.attention.position);
  *accepted->mutable_sampling() = server::ToProto(spec.sampling);
  accepted->set_max_new_tokens(static_cast<uint32_t>(spec.stop.max_new_tokens));
  accepted->set_prompt_tokens(static_cast<uint64_t>(question.prompt_tokens()));
  accepted->set_format(question.format);
  return event;
}

}  // namespace

// What the engine tells one of the answers.
template <typename Wire>
class AnswerCall<Wire>::Target final : public PumpTarget {
 public:
  Target(std::shared_ptr<AnswerCall> call, size_t index) : call_(std::move(call)), index_(index) {}
  void Handle(Event event) override { call_->HandleOf(index_, event); }
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status& status) override { call_->Stop(status); }

 private:
  const std::shared_ptr<AnswerCall> call_;
  const size_t index_;
};

template <typename Wire>
AnswerCall<Wire>* AnswerCall<Wire>::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                                          const Incoming<Request>* incoming) {
  std::shared_ptr<AnswerCall> call(new AnswerCall(context, rpc, incoming));
  call->self_ = call;
  context->streams.Add();
  const absl::Status begun = CatchErrors([&] { call->Begin(); });
  if (!begun.ok()) call->OnPrepareFailed(begun);
  return call.get();
}

template <typename Wire>
AnswerCall<Wire>::AnswerCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
                             const Incoming<Request>* incoming)
    : context_(context),
      rpc_(rpc),
      incoming_(incoming),
      client_(ClientOf(rpc->peer())),
      deadline_(DeadlineOf(*rpc)),
      arrived_(context->clock()),
      writes_({.write =
                   [this](const typename Wire::Event* event) {
                     reader_.OnWriteStarted(context_->clock());
                     this->StartWrite(event);
                   },
               .finish =
                   [this](grpc::Status status) {
                     CatchErrors([&] { SendRequestId(request_id_, rpc_); }).IgnoreError();
                     SendRetryPushback(status, rpc_);
                     this->Finish(std::move(status));
                   },
               .merge = Wire::Merge}),
      reader_(std::chrono::seconds(context->options.requests.slow_reader_seconds)),
      last_event_(arrived_) {}

template <typename Wire>
void AnswerCall<Wire>::Note(const Request& request) {
  const v1::GenerateRequest& shared = Wire::Shared(request);
  request_id_ = RequestIdFor(shared.request_id());
  has_document_ = shared.has_document();
  const v1::ResponseOptions& response = shared.response();
  wants_spans_ = response.evidence_spans() > 0;
  heartbeat_ = std::chrono::milliseconds(response.has_heartbeat_interval_ms()
                                             ? response.heartbeat_interval_ms()
                                             : kDefaultHeartbeatMs);
}

template <typename Wire>
void AnswerCall<Wire>::Begin() {
  if (incoming_->is_read()) Note(incoming_->message());
  if (grpc::Status refused = context_->BeginPreparation(client_, &preparing_); !refused.ok()) {
    return writes_.Finish(std::move(refused));
  }
  const int64_t bytes = MemoryFor<Wire>(*incoming_, context_->engine()->tokenizer());
  if (grpc::Status refused = context_->TakeMemory(bytes, &memory_); !refused.ok()) {
    preparing_.reset();
    return writes_.Finish(std::move(refused));
  }
  const auto call = this->shared_from_this();
  context_->pump.Register(call);
  context_->pool.Post(PromptPool::LaneFor(incoming_->bytes()), client_,
                      {[call] { call->Prepare(); },
                       [call](const absl::Status& status) { call->OnPrepareFailed(status); }});
}

template <typename Wire>
void AnswerCall<Wire>::Prepare() {
  std::vector<GenerateQuestion> questions;
  grpc::Status status = Read(&questions);
  preparing_.reset();  // from here on the engine counts it
  if (status.ok()) status = Submit(std::move(questions));
  if (!status.ok()) writes_.Finish(std::move(status));
}

template <typename Wire>
void AnswerCall<Wire>::OnPrepareFailed(const absl::Status& status) {
  preparing_.reset();
  writes_.Finish(ToGrpcStatus(status));  // first: it needs no memory
  context_->pump.Run(this->shared_from_this(), [&] {
    EndEarly(status);  // it may be submitted
    context_->metrics->OnFailed(status, "tokenise");
  });
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::StatusWhileReading(const absl::Status& reason) const {
  context_->metrics->OnFailed(reason, "tokenise");
  return ToGrpcStatus(reason, {{}, {{"phase", "tokenise"}}, {}});
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::Read(std::vector<GenerateQuestion>* questions) {
  if (const auto reason = end_reason()) return StatusWhileReading(*reason);
  const bool was_read = incoming_->is_read();
  if (grpc::Status bad = incoming_->Read(); !bad.ok()) return bad;
  const Request& request = incoming_->message();
  if (!was_read) Note(request);
  if (grpc::Status bad = Wire::Check(request); !bad.ok()) return bad;
  const int64_t bytes = Wire::MemoryFor(request, context_->engine()->tokenizer());
  if (bytes > memory_.bytes()) {
    memory_ = {};
    if (grpc::Status bad = context_->TakeMemory(bytes, &memory_); !bad.ok()) return bad;
  }
  memory_.ShrinkTo(bytes);
  const grpc::Status read = ReadQuestions(questions);
  if (const auto reason = end_reason()) return StatusWhileReading(*reason);
  return read;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::ReadQuestions(std::vector<GenerateQuestion>* questions) {
  const Request& request = incoming_->message();
  const auto interrupt = [this] { return end_reason().value_or(absl::OkStatus()); };
  answers_.resize(static_cast<size_t>(Wire::NumAnswers(request)));
  questions->resize(answers_.size());
  v1::GenerateRequest made;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const int index = static_cast<int>(i);
    answers_[i].place = Wire::PlaceOf(request, index);
    grpc::Status bad = ReadGenerateRequest(Wire::Of(request, index, &made), *context_->engine(),
                                           context_->options, interrupt, &(*questions)[i]);
    if (!bad.ok()) return Wire::About(answers_[i].place, std::move(bad));
  }
  return grpc::Status::OK;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::Submit(std::vector<GenerateQuestion> questions) {
  size_t num_tokens = 0;
  for (const GenerateQuestion& question : questions) num_tokens += question.spec.tokens.size();
  memory_.ShrinkTo(
      static_cast<int64_t>(incoming_->message().SpaceUsedLong() + sizeof(int32_t) * num_tokens));
  // Under the lock, so that a cancellation either comes before (nothing is submitted) or finds the
  // ids, and that the events of requests wait behind Accepted: the pump takes the lock too.
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) return StatusWhileReading(*end_reason_);
  ids_.reserve(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const grpc::Status refused = SubmitOne(std::move(questions[i]), i);
    if (refused.ok()) continue;
    const absl::Status reason = absl::AbortedError("another question of the call was refused");
    for (const RequestId id : ids_) context_->engine()->Cancel(id, reason);
    return Wire::About(answers_[i].place, refused);
  }
  return grpc::Status::OK;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::SubmitOne(GenerateQuestion question, size_t index) {
  GenerateSpec& spec = question.spec;
  Answer& answer = answers_[index];
  spec.client = client_;
  if (deadline_ != std::chrono::system_clock::time_point::max()) {
    spec.deadline = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        deadline_ - std::chrono::system_clock::now());
  }
  answer.strategy = spec.attention.strategy.name;
  answer.metrics = context_->metrics->ForStrategy(answer.strategy);
  v1::GenerateEvent accepted = AcceptedEvent(question);
  if (question.document.has_value()) answer.upload = DocumentUpload::Of(*question.document);
  const auto target = std::make_shared<Target>(this->shared_from_this(), index);
  const auto id = context_->engine()->Submit(std::move(spec), context_->pump.SinkFor(target));
  if (!id.ok()) return context_->Refusal(id.status());
  ids_.push_back(*id);
  context_->metrics->OnAccepted(answer.strategy);
  Send(&answer, std::move(accepted));
  return grpc::Status::OK;
}

template <typename Wire>
void AnswerCall<Wire>::Send(Answer* answer, v1::GenerateEvent event) {
  event.set_request_id(request_id_);
  event.set_sequence(answer->next_sequence);
  last_event_ = context_->clock();
  if (writes_.Push(Wire::Wrap(answer->place, std::move(event)))) ++answer->next_sequence;
}

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
    answer->phase = Phase::kPrefill;
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
  answer->phase = Phase::kDecode;
  answer->metrics->generated_tokens->Increment(static_cast<double>(delta.tokens.size()));
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

template <typename Wire>
void AnswerCall<Wire>::Stop(const absl::Status& status) {
  EndEarly(status);
  if (!submitted()) return;
  // An engine that hangs would not say so.
  writes_.Finish(ToGrpcStatus(status, {{}, {{"phase", PhaseName(phase())}}, {}}));
}

template <typename Wire>
void AnswerCall<Wire>::EndEarly(const absl::Status& reason) {
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) return;
  // Before the note: if it throws, the next reason cancels. While preparing, the pool thread finds
  // the note.
  for (const RequestId id : ids_) context_->engine()->Cancel(id, reason);
  end_reason_ = reason;
}

template <typename Wire>
std::optional<absl::Status> AnswerCall<Wire>::end_reason() const {
  MutexLock lock(&mu_);
  return end_reason_;
}

template <typename Wire>
void AnswerCall<Wire>::OnWriteDone(bool ok) {
  context_->pump.Run(this->shared_from_this(), [&] {
    reader_.OnWriteDone();
    writes_.OnWriteDone(ok);
    if (!ok) EndEarly(absl::CancelledError("the client is gone"));
  });
}

template <typename Wire>
void AnswerCall<Wire>::OnCancel() {
  context_->pump.Run(this->shared_from_this(), [&] {
    // gRPC cancels calls whose deadline has passed, too.
    EndEarly(std::chrono::system_clock::now() >= deadline_
                 ? absl::DeadlineExceededError("the deadline has passed")
                 : absl::CancelledError("the client cancelled the request"));
  });
}

template <typename Wire>
void AnswerCall<Wire>::OnDone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
  }
  CatchErrors([&] {
    const char* code = CodeName(writes_.final_code().value_or(grpc::StatusCode::UNKNOWN));
    context_->metrics->OnRpc(Wire::kName, code);
    LogRpc({Wire::kName, code, request_id_, answers_.empty() ? "" : answers_[0].strategy,
            Seconds(arrived_, context_->clock())});
  }).IgnoreError();
  context_->pump.Unregister(self_);
  std::shared_ptr<AnswerCall> last = std::move(self_);
  last->context_->streams.Remove();
}

template class AnswerCall<GenerateWire>;
template class AnswerCall<AskManyWire>;

}  // namespace folio::server
