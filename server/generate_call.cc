#include "server/generate_call.h"

#include <spdlog/spdlog.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr size_t kMaxWaitingEvents = 4096;
constexpr uint32_t kDefaultHeartbeatMs = 5000;

std::string RequestIdOf(const v1::GenerateRequest& request) {
  if (!request.request_id().empty()) return request.request_id();
  std::random_device random;
  return absl::StrCat("req-", absl::Hex(uint64_t{random()} << 32 | random(), absl::kZeroPad16));
}

int64_t Microseconds(SteadyTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

// Folds a delta into one that still waits for a slow reader.
bool MergeDelta(const v1::Delta& from, v1::GenerateEvent* into) {
  if (!into->has_delta()) return false;
  v1::Delta* to = into->mutable_delta();
  to->mutable_text()->append(from.text());
  to->mutable_token_ids()->MergeFrom(from.token_ids());
  to->mutable_logprobs()->MergeFrom(from.logprobs());
  to->mutable_top_logprobs()->MergeFrom(from.top_logprobs());
  return true;
}

}  // namespace

GenerateCall* GenerateCall::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                                  const v1::GenerateRequest* request) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(context, rpc, request));
  call->self_ = call;
  context->active_streams.fetch_add(1);
  call->StartSendInitialMetadata();
  context->pump.Register(call);
  context->pool.Post([call] { call->Prepare(); });
  return call.get();
}

GenerateCall::GenerateCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
                           const v1::GenerateRequest* request)
    : context_(context),
      rpc_(rpc),
      request_(request),
      request_id_(RequestIdOf(*request)),
      heartbeat_(request->response().has_heartbeat_interval_ms()
                     ? request->response().heartbeat_interval_ms()
                     : kDefaultHeartbeatMs),
      writes_([this](const v1::GenerateEvent* event) { StartWrite(event); },
              [this](grpc::Status status) { Finish(std::move(status)); }) {
  last_event_us_ = Microseconds(arrived_);
}

void GenerateCall::Prepare() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (cancelled_) return;  // OnCancel has finished the call
  }
  const auto engine = context_->engine();
  if (!engine.ok()) {
    context_->metrics->OnRejected(engine.status());
    return FinishWith(ToGrpcStatus(engine.status()));
  }
  GenerateSpec spec;
  grpc::Status status = FromProto(*request_, context_->options, &spec);
  if (status.ok()) status = Tokenise(*engine, &spec);
  if (status.ok()) status = Submit(*engine, std::move(spec));
  if (status.ok()) return;
  context_->metrics->OnRejected(absl::Status(static_cast<absl::StatusCode>(status.error_code()), ""));
  FinishWith(status);
}

grpc::Status GenerateCall::Tokenise(Engine* engine, GenerateSpec* spec) const {
  const Tokenizer& tokenizer = engine->tokenizer();
  const bool is_question = request_->has_document();
  const v1::TokenIds* ids = nullptr;
  const std::string* text = &request_->prompt();
  if (request_->has_prompt_token_ids()) ids = &request_->prompt_token_ids();
  if (is_question) {
    text = &request_->document().text();
    if (request_->document().has_token_ids()) ids = &request_->document().token_ids();
  }
  if (ids != nullptr) {
    for (uint32_t id : ids->ids()) {
      if (id >= static_cast<uint32_t>(engine->info().shape.vocab_size)) {
        return BadField("token_ids", absl::StrCat("id ", id, " is not in the vocabulary of ",
                                                  engine->info().shape.vocab_size));
      }
    }
    spec->tokens.assign(ids->ids().begin(), ids->ids().end());
  } else {
    if (text->empty()) return BadField(is_question ? "document.text" : "prompt", "is empty");
    auto tokens = tokenizer.Encode(*text);
    if (!tokens.ok()) return ToGrpcStatus(tokens.status());
    if (!is_question && tokenizer.bos_id() >= 0) spec->tokens.push_back(tokenizer.bos_id());
    spec->tokens.insert(spec->tokens.end(), tokens->begin(), tokens->end());
  }
  if (spec->tokens.empty()) return BadField("input", "has no tokens");
  return grpc::Status::OK;
}

grpc::Status GenerateCall::Submit(Engine* engine, GenerateSpec spec) {
  auto resolved = engine->ResolveStrategy(spec.strategy);
  if (!resolved.ok()) return BadField("strategy", std::string(resolved.status().message()));
  spec.strategy = *resolved;
  strategy_ = resolved->name;
  const auto deadline = rpc_->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    spec.deadline = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        deadline - std::chrono::system_clock::now());
  }
  int64_t prompt_tokens = static_cast<int64_t>(spec.tokens.size());
  if (!spec.document_id.empty()) {
    const auto document = engine->GetDocument(spec.document_id);
    if (document.has_value()) prompt_tokens += document->known_tokens;
  }
  v1::GenerateEvent accepted;
  *accepted.mutable_accepted()->mutable_strategy() = ToProto(spec.strategy);
  *accepted.mutable_accepted()->mutable_sampling() = ToProto(spec.sampling);
  accepted.mutable_accepted()->set_max_new_tokens(spec.stop.max_new_tokens);
  accepted.mutable_accepted()->set_prompt_tokens(prompt_tokens);

  // Under the lock, so that a cancellation either comes before (nothing is submitted) or finds the id.
  // Events of the request wait behind Accepted: the pump takes the lock too.
  std::lock_guard<std::mutex> lock(mu_);
  if (cancelled_) return grpc::Status::CANCELLED;
  const auto id = engine->Submit(std::move(spec), context_->pump.SinkFor(shared_from_this()));
  if (!id.ok()) return ToGrpcStatus(id.status());
  request_handle_ = *id;
  context_->metrics->OnAccepted(strategy_);
  Send(std::move(accepted));
  return grpc::Status::OK;
}

void GenerateCall::Send(v1::GenerateEvent event) {
  event.set_request_id(request_id_);
  event.set_sequence(next_sequence_.fetch_add(1));
  last_event_us_.store(Microseconds(std::chrono::steady_clock::now()));
  writes_.Push(std::move(event));
}

void GenerateCall::SendDelta(const DeltaEvent& delta) {
  v1::GenerateEvent event;
  ToProto(delta, &event);
  event.set_request_id(request_id_);
  event.set_sequence(next_sequence_.load());
  last_event_us_.store(Microseconds(std::chrono::steady_clock::now()));
  bool merged = false;
  writes_.Push(std::move(event), [&](v1::GenerateEvent* last) {
    v1::GenerateEvent own;
    ToProto(delta, &own);
    merged = MergeDelta(own.delta(), last);
    return merged;
  });
  if (!merged) next_sequence_.fetch_add(1);
}

void GenerateCall::NoteDelta(int num_tokens, SteadyTime now) {
  const bool first = last_token_ == SteadyTime{};
  if (first) {
    context_->metrics->OnFirstToken(strategy_, request_->has_document(), Seconds(arrived_, now));
  }
  context_->metrics->OnTokens(strategy_, num_tokens, first ? -1.0 : Seconds(last_token_, now));
  last_token_ = now;
}

void GenerateCall::Handle(Event event) {
  { std::lock_guard<std::mutex> wait_for_accepted(mu_); }
  const SteadyTime now = std::chrono::steady_clock::now();
  if (writes_.size() > kMaxWaitingEvents) {
    OnCancel();
    return FinishWith(ToGrpcStatus(absl::AbortedError("the client does not read its stream")));
  }
  if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
    phase_ = Phase::kDecode;
    NoteDelta(static_cast<int>(delta->tokens.size()), now);
    SendDelta(*delta);
  } else if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    phase_ = Phase::kPrefill;
    v1::GenerateEvent out;
    ToProto(*prefill, &out);
    Send(std::move(out));
  } else if (const auto* queued = std::get_if<QueuedEvent>(&event)) {
    v1::GenerateEvent out;
    out.mutable_queued()->set_position(static_cast<uint32_t>(queued->position));
    Send(std::move(out));
  } else if (const auto* completed = std::get_if<CompletedEvent>(&event)) {
    context_->metrics->OnCompleted(*completed, Seconds(arrived_, now));
    v1::GenerateEvent out;
    ToProto(*completed, &out);
    Send(std::move(out));
    FinishWith(grpc::Status::OK);
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    context_->metrics->OnFailed(failed->status, failed->phase);
    FinishWith(ToGrpcStatus(failed->status));
  }
}

void GenerateCall::Tick(SteadyTime now) {
  const int64_t silence_us = Microseconds(now) - last_event_us_.load();
  const int64_t limit_us =
      std::chrono::duration_cast<std::chrono::microseconds>(heartbeat_ - 2 * EventPump::kTick)
          .count();
  if (silence_us < limit_us || writes_.finished()) return;
  {
    // Heartbeats follow Accepted; before it, tokenising takes milliseconds.
    std::lock_guard<std::mutex> lock(mu_);
    if (request_handle_ == 0) return;
  }
  v1::GenerateEvent event;
  const Phase phase = phase_.load();
  event.mutable_heartbeat()->set_phase(phase == Phase::kQueued    ? v1::Heartbeat::PHASE_QUEUED
                                       : phase == Phase::kPrefill ? v1::Heartbeat::PHASE_PREFILL
                                                                  : v1::Heartbeat::PHASE_DECODE);
  Send(std::move(event));
}

void GenerateCall::FinishWith(const grpc::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!status.ok()) final_code_ = absl::StrCat(status.error_code());
  }
  writes_.Finish(status);
}

void GenerateCall::OnWriteDone(bool ok) {
  writes_.OnWriteDone(ok);
  if (!ok) OnCancel();
}

void GenerateCall::OnCancel() {
  RequestId id = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (cancelled_) return;
    cancelled_ = true;
    id = request_handle_;
  }
  if (id != 0) {
    (*context_->engine())->Cancel(id, absl::CancelledError("the client cancelled the request"));
  } else {
    FinishWith(grpc::Status::CANCELLED);
  }
}

void GenerateCall::OnDone() {
  std::string code;
  {
    std::lock_guard<std::mutex> lock(mu_);
    code = final_code_;
  }
  context_->metrics->OnRpc("Generate", code);
  SPDLOG_INFO("Generate {} strategy={} code={} seconds={:.3f}", request_id_, strategy_, code,
              Seconds(arrived_, std::chrono::steady_clock::now()));
  context_->pump.Unregister(self_);
  context_->active_streams.fetch_sub(1);
  std::shared_ptr<GenerateCall> last = std::move(self_);
}

}  // namespace folio::server
