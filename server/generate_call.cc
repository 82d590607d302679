#include "server/generate_call.h"

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
// A waiting delta takes more text in up to this size.
constexpr size_t kMaxMergedBytes = 64 << 10;

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
int64_t MemoryFor(const Incoming<v1::GenerateRequest>& incoming, const Tokenizer& tokenizer) {
  if (incoming.is_read()) return MemoryToRead(incoming.message(), tokenizer);
  constexpr size_t kOfId = sizeof(uint32_t) + sizeof(int32_t);
  const size_t most = 1 + std::max(kOfId, tokenizer.encode_bytes_per_byte());
  return static_cast<int64_t>(most * incoming.bytes());
}

// Folds an event into one of its kind that still waits for a slow reader: text is added, of
// progress and signs of life only the newest matters. The number stays that of the waiting event.
bool Merge(const v1::GenerateEvent& from, v1::GenerateEvent* into) {
  if (from.event_case() != into->event_case()) return false;
  const uint64_t sequence = into->sequence();
  switch (from.event_case()) {
    case v1::GenerateEvent::kDelta:
      if (into->ByteSizeLong() > kMaxMergedBytes) return false;
      into->mutable_delta()->mutable_text()->append(from.delta().text());
      into->mutable_delta()->mutable_token_ids()->MergeFrom(from.delta().token_ids());
      into->mutable_delta()->mutable_logprobs()->MergeFrom(from.delta().logprobs());
      into->mutable_delta()->mutable_top_logprobs()->MergeFrom(from.delta().top_logprobs());
      return true;
    case v1::GenerateEvent::kQueued:
    case v1::GenerateEvent::kPrefill:
    case v1::GenerateEvent::kHeartbeat:
      *into = from;
      into->set_sequence(sequence);
      return true;
    default:
      return false;
  }
}

}  // namespace

GenerateCall* GenerateCall::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                                  const Incoming<v1::GenerateRequest>* incoming) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(context, rpc, incoming));
  call->self_ = call;
  context->streams.Add();
  const absl::Status begun = CatchErrors([&] { call->Begin(); });
  if (!begun.ok()) call->OnPrepareFailed(begun);
  return call.get();
}

GenerateCall::GenerateCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
                           const Incoming<v1::GenerateRequest>* incoming)
    : context_(context),
      rpc_(rpc),
      incoming_(incoming),
      client_(ClientOf(rpc->peer())),
      deadline_(DeadlineOf(*rpc)),
      arrived_(context->clock()),
      writes_({.write =
                   [this](const v1::GenerateEvent* event) {
                     reader_.OnWriteStarted(context_->clock());
                     StartWrite(event);
                   },
               .finish =
                   [this](grpc::Status status) {
                     CatchErrors([&] { SendRequestId(request_id_, rpc_); }).IgnoreError();
                     SendRetryPushback(status, rpc_);
                     Finish(std::move(status));
                   },
               .merge = Merge}),
      reader_(std::chrono::seconds(context->options.requests.slow_reader_seconds)),
      last_event_(arrived_) {}

void GenerateCall::Note(const v1::GenerateRequest& request) {
  request_id_ = RequestIdFor(request.request_id());
  has_document_ = request.has_document();
  const v1::ResponseOptions& response = request.response();
  wants_spans_ = response.evidence_spans() > 0;
  heartbeat_ = std::chrono::milliseconds(response.has_heartbeat_interval_ms()
                                             ? response.heartbeat_interval_ms()
                                             : kDefaultHeartbeatMs);
}

void GenerateCall::Begin() {
  if (incoming_->is_read()) Note(incoming_->message());
  if (grpc::Status refused = context_->BeginPreparation(client_, &preparing_); !refused.ok()) {
    return writes_.Finish(std::move(refused));
  }
  const int64_t bytes = MemoryFor(*incoming_, context_->engine()->tokenizer());
  if (grpc::Status refused = context_->TakeMemory(bytes, &memory_); !refused.ok()) {
    preparing_.reset();
    return writes_.Finish(std::move(refused));
  }
  const auto call = shared_from_this();
  context_->pump.Register(call);
  context_->pool.Post(PromptPool::LaneFor(incoming_->bytes()), client_,
                      {[call] { call->Prepare(); },
                       [call](const absl::Status& status) { call->OnPrepareFailed(status); }});
}

void GenerateCall::Prepare() {
  GenerateQuestion question;
  grpc::Status status = Read(&question);
  preparing_.reset();  // from here on the engine counts it
  if (status.ok()) status = Submit(std::move(question));
  if (!status.ok()) writes_.Finish(std::move(status));
}

void GenerateCall::OnPrepareFailed(const absl::Status& status) {
  preparing_.reset();
  writes_.Finish(ToGrpcStatus(status));  // first: it needs no memory
  context_->pump.Run(shared_from_this(), [&] {
    EndEarly(status);  // it may be submitted
    context_->metrics->OnFailed(status, "tokenise");
  });
}

grpc::Status GenerateCall::Read(GenerateQuestion* question) {
  const auto ended = [this]() -> grpc::Status {
    const auto reason = end_reason();
    if (!reason.has_value()) return grpc::Status::OK;
    context_->metrics->OnFailed(*reason, "tokenise");
    return ToGrpcStatus(*reason, {{}, {{"phase", "tokenise"}}, {}});
  };
  if (grpc::Status gone = ended(); !gone.ok()) return gone;
  const bool was_read = incoming_->is_read();
  if (grpc::Status bad = incoming_->Read(); !bad.ok()) return bad;
  const v1::GenerateRequest& request = incoming_->message();
  if (!was_read) Note(request);
  memory_.ShrinkTo(MemoryToRead(request, context_->engine()->tokenizer()));
  const auto interrupt = [this] { return end_reason().value_or(absl::OkStatus()); };
  const grpc::Status read =
      ReadGenerateRequest(request, *context_->engine(), context_->options, interrupt, question);
  const grpc::Status status = ended();
  return status.ok() ? read : status;
}

v1::GenerateEvent GenerateCall::AcceptedEvent(const GenerateQuestion& question) const {
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

grpc::Status GenerateCall::Submit(GenerateQuestion question) {
  GenerateSpec& spec = question.spec;
  spec.client = client_;
  memory_.ShrinkTo(static_cast<int64_t>(incoming_->message().SpaceUsedLong() +
                                        sizeof(int32_t) * spec.tokens.size()));
  if (deadline_ != std::chrono::system_clock::time_point::max()) {
    spec.deadline = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        deadline_ - std::chrono::system_clock::now());
  }
  strategy_ = spec.attention.strategy.name;
  metrics_ = context_->metrics->ForStrategy(strategy_);
  v1::GenerateEvent accepted = AcceptedEvent(question);
  if (question.document.has_value()) upload_ = DocumentUpload::Of(*question.document);
  // Under the lock, so that a cancellation either comes before (nothing is submitted) or finds the
  // id, and that the request's events wait behind Accepted: the pump takes the lock too.
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) {
    context_->metrics->OnFailed(*end_reason_, "tokenise");
    return ToGrpcStatus(*end_reason_, {{}, {{"phase", "tokenise"}}, {}});
  }
  const auto id =
      context_->engine()->Submit(std::move(spec), context_->pump.SinkFor(shared_from_this()));
  if (!id.ok()) return context_->Refusal(id.status());
  id_ = *id;
  context_->metrics->OnAccepted(strategy_);
  Send(std::move(accepted));
  return grpc::Status::OK;
}

void GenerateCall::Send(v1::GenerateEvent event) {
  event.set_request_id(request_id_);
  event.set_sequence(next_sequence_);
  last_event_ = context_->clock();
  if (writes_.Push(std::move(event))) ++next_sequence_;
}

void GenerateCall::Handle(Event event) {
  if (!saw_accepted_) {
    MutexLock wait_for_accepted(&mu_);
    saw_accepted_ = true;
  }
  const SteadyTime now = context_->clock();
  if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
    OnDelta(*delta, now);
  } else if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    phase_ = Phase::kPrefill;
    if (has_document_) {
      document_use_ = prefill->cached_tokens > 0 ? DocumentUse::kHit : DocumentUse::kMiss;
    }
    v1::GenerateEvent out;
    server::ToProto(*prefill, &out);
    Send(std::move(out));
  } else if (const auto* queued = std::get_if<QueuedEvent>(&event)) {
    v1::GenerateEvent out;
    out.mutable_queued()->set_position(static_cast<uint32_t>(queued->position));
    Send(std::move(out));
  } else if (const auto* evidence = std::get_if<EvidenceEvent>(&event)) {
    OnEvidence(*evidence);
  } else if (const auto* completed = std::get_if<CompletedEvent>(&event)) {
    OnCompleted(*completed, now);
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    OnFailed(*failed);
  }
  CheckReader(now);
}

void GenerateCall::OnDelta(const DeltaEvent& delta, SteadyTime now) {
  phase_ = Phase::kDecode;
  metrics_->generated_tokens->Increment(static_cast<double>(delta.tokens.size()));
  if (last_token_ == SteadyTime{}) {
    metrics_->first_token_seconds[static_cast<size_t>(document_use_)]->Observe(
        Seconds(arrived_, now));
  } else {
    metrics_->inter_token_seconds->Observe(Seconds(last_token_, now));
  }
  last_token_ = now;
  v1::GenerateEvent out;
  server::ToProto(delta, &out);
  Send(std::move(out));
}

void GenerateCall::OnEvidence(const EvidenceEvent& evidence) {
  for (size_t layer = 0; layer < evidence.layers.size(); ++layer) {
    v1::GenerateEvent out;
    *out.mutable_layer_evidence() = server::ToProto(evidence, layer);
    Send(std::move(out));
  }
  if (!wants_spans_) return;
  v1::GenerateEvent out;
  server::ToProto(evidence, context_->engine()->tokenizer(), upload_.get(), &out);
  Send(std::move(out));
}

void GenerateCall::OnCompleted(const CompletedEvent& completed, SteadyTime now) {
  context_->metrics->OnCompleted(completed, Seconds(arrived_, now));
  context_->rate.OnFinished(now);
  v1::GenerateEvent out;
  server::ToProto(completed, &out);
  Send(std::move(out));
  writes_.Finish(grpc::Status::OK);
}

void GenerateCall::OnFailed(const FailedEvent& failed) {
  const std::string phase = PhaseName(failed.phase);
  context_->metrics->OnFailed(failed.status, phase);
  context_->rate.OnFinished(context_->clock());
  writes_.Finish(ToGrpcStatus(failed.status, {{}, {{"phase", phase}}, {}}));
}

void GenerateCall::CheckReader(SteadyTime now) {
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

void GenerateCall::SetHeldBack(bool held_back) {
  if (held_back == held_back_) return;
  held_back_ = held_back;
  MutexLock lock(&mu_);
  if (id_ == 0) return;
  held_back ? context_->engine()->HoldBack(id_) : context_->engine()->LetGoOn(id_);
}

void GenerateCall::AbortSlowReader() {
  const absl::Status status = absl::AbortedError(
      absl::StrCat("the client has read nothing for ", reader_.patience().count(), " s"));
  writes_.Abort(ToGrpcStatus(status, {"SLOW_CONSUMER", {{"phase", PhaseName(phase_)}}, {}}));
  EndEarly(status);
}

void GenerateCall::Tick(SteadyTime now) {
  {
    // Heartbeats follow Accepted; tokens take at most some seconds to find.
    MutexLock lock(&mu_);
    if (id_ == 0) return;
  }
  CheckReader(now);
  if (now - last_event_ < heartbeat_ - 2 * EventPump::kTick || writes_.final_code().has_value()) {
    return;
  }
  v1::GenerateEvent event;
  event.mutable_heartbeat()->set_phase(ToProto(phase_));
  Send(std::move(event));
}

void GenerateCall::Stop(const absl::Status& status) {
  EndEarly(status);
  {
    MutexLock lock(&mu_);
    if (id_ == 0) return;
  }
  // An engine that hangs would not say so.
  writes_.Finish(ToGrpcStatus(status, {{}, {{"phase", PhaseName(phase_)}}, {}}));
}

void GenerateCall::EndEarly(const absl::Status& reason) {
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) return;
  // Before the note: if it throws, the next reason cancels. While preparing, the pool thread finds
  // the note.
  if (id_ != 0) context_->engine()->Cancel(id_, reason);
  end_reason_ = reason;
}

std::optional<absl::Status> GenerateCall::end_reason() const {
  MutexLock lock(&mu_);
  return end_reason_;
}

void GenerateCall::OnWriteDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] {
    reader_.OnWriteDone();
    writes_.OnWriteDone(ok);
    if (!ok) EndEarly(absl::CancelledError("the client is gone"));
  });
}

void GenerateCall::OnCancel() {
  context_->pump.Run(shared_from_this(), [&] {
    // gRPC cancels calls whose deadline has passed, too.
    EndEarly(std::chrono::system_clock::now() >= deadline_
                 ? absl::DeadlineExceededError("the deadline has passed")
                 : absl::CancelledError("the client cancelled the request"));
  });
}

void GenerateCall::OnDone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
  }
  CatchErrors([&] {
    const char* code = CodeName(writes_.final_code().value_or(grpc::StatusCode::UNKNOWN));
    context_->metrics->OnRpc("Generate", code);
    LogRpc({"Generate", code, request_id_, strategy_, Seconds(arrived_, context_->clock())});
  }).IgnoreError();
  context_->pump.Unregister(self_);
  std::shared_ptr<GenerateCall> last = std::move(self_);
  last->context_->streams.Remove();
}

}  // namespace folio::server
