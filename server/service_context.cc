#include "server/service_context.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/shortage.h"
#include "server/document_expiry.h"

namespace folio::server {
namespace {

// A step of a large model over a large batch takes seconds on a CPU.
constexpr int kDeviceStepTimeoutSeconds = 120;
constexpr int kHostStepTimeoutSeconds = 600;
// Half a minute, for threads that have something to do every half second.
constexpr int kMaxLooks = 60;
// For the last statuses to reach their clients.
constexpr std::chrono::seconds kLastWords{2};
constexpr std::chrono::milliseconds kHurryPoll{20};
constexpr std::chrono::milliseconds kLoadingRetry{2000};
constexpr std::chrono::milliseconds kMemoryRetry{1000};
// A client that comes back finds another replica, or this one restarted.
constexpr std::chrono::milliseconds kDrainingRetry{1000};

}  // namespace

void StreamCount::Add() {
  MutexLock lock(&mu_);
  ++count_;
}

void StreamCount::Remove() {
  MutexLock lock(&mu_);
  if (--count_ == 0) changed_.NotifyAll();
}

bool StreamCount::WaitUntilZero(SteadyTime deadline, const std::function<bool()>& hurry) {
  MutexLock lock(&mu_);
  while (count_ > 0) {
    const SteadyTime now = std::chrono::steady_clock::now();
    if (now >= deadline || hurry()) return false;
    changed_.WaitUntil(&mu_, std::min<SteadyTime>(deadline, now + kHurryPoll));
  }
  return true;
}

ServiceContext::ServiceContext(const ServerOptions& o, Clock c, Metrics* m)
    : pump_beat_(kMaxLooks),
      listener_beat_(kMaxLooks),
      options(o),
      clock(std::move(c)),
      metrics(m),
      memory(options.requests.max_memory_bytes),
      log(options.log_calls_per_second),
      spans(options.otlp_endpoint == "off"
                ? nullptr
                : std::make_unique<SpanExporter>(options.otlp_endpoint,
                                                 CollectorCredentials(options.otlp_ca))),
      pump(clock, [this](SteadyTime now) { KeepHouse(now); }) {
  pump_beat_.Beat(clock());  // the first: a pump that never begins is noticed, too
}

void ServiceContext::KeepHouse(SteadyTime now) {
  pump_beat_.Beat(now);
  CheckLiveness(now);
  LookAtTenants();
  audit.Look();
  log.Report(now);
  Engine* const engine = this->engine();
  if (engine == nullptr) return;
  trim_.Tick(/*idle=*/memory.used() == 0 && !engine->Stats().busy, memory.num_taken(), now);
  DeleteExpiredUploads(engine, now);
  DeleteExpiredDocuments(engine);
}

void ServiceContext::LookAtTenants() {
  const auto read = authenticator.Look();
  if (!read.has_value()) return;
  if (read->ok()) {
    tenants.SetTenants(authenticator.tenant_names());
    return spdlog::info("the file of --tenants has changed and is in use");
  }
  spdlog::error("the changed file of --tenants is not used: {}", std::string(read->message()));
}

absl::Status ServiceContext::LoadTenants() {
  if (options.tenants.empty()) return absl::OkStatus();
  FOLIO_RETURN_IF_ERROR(authenticator.Load(options.tenants));
  tenants.SetTenants(authenticator.tenant_names());
  return absl::OkStatus();
}

void ServiceContext::Keep(const RpcRecord& call) {
  metrics->OnRpc(call.method, call.code);
  tenants.OnCall(call);
  const SteadyTime now = clock();
  log.Write(call, now);
  audit.Add(call, now);
}

grpc::Status ServiceContext::Authenticate(const grpc::ServerContextBase& rpc, Caller* caller) {
  grpc::Status status = authenticator.Authenticate(rpc, caller);
  if (status.ok()) return status;
  const bool full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  metrics->OnRejected(full ? "calls" : "unauthenticated");
  return status;
}

bool ServiceContext::PumpGoesOn() {
  listener_beat_.Beat(clock());
  return !pump_beat_.Stopped();
}

void ServiceContext::Probe(std::vector<SelfProbe::Port> ports) {
  MutexLock lock(&probe_mu_);
  probe_.emplace(std::move(ports), SelfProbe::Looks());
}

std::chrono::milliseconds ServiceContext::RetryDelay() const {
  const Engine* engine = this->engine();
  const EngineStats stats = engine == nullptr ? EngineStats() : engine->Stats();
  const double prefill_seconds =
      static_cast<double>(stats.waiting_prefill_tokens) * stats.prefill_token_seconds;
  return rate.RetryDelay(stats.queued() + preparing.num_requests(), prefill_seconds, clock());
}

void ServiceContext::CheckLiveness(SteadyTime now) {
  if (!options.on_stall) return;
  if (stalled_.has_value()) {
    if (now - *stalled_ >= kLastWords && !std::exchange(gave_up_, true)) options.on_stall();
    return;
  }
  const auto what = WhatHangs(now);
  if (!what.has_value()) return;
  stalled_ = now;
  on_hang(*what);
}

std::optional<std::string> ServiceContext::WhatHangs(SteadyTime now) {
  // A drain ends in time, and closes the listener.
  if (!is_draining()) {
    if (listener_beat_.Stopped()) return "the thread of the listener has stopped";
    MutexLock lock(&probe_mu_);
    if (probe_.has_value()) {
      if (auto deaf = probe_->Deaf()) return deaf;
    }
  }
  const Engine* const engine = this->engine();
  return engine == nullptr ? std::nullopt : EngineHangs(*engine, now);
}

std::optional<std::string> ServiceContext::EngineHangs(const Engine& engine, SteadyTime now) {
  if (!liveness_.has_value()) {
    const bool gpu = absl::StartsWith(engine.info().backend, "cuda");
    const int usual = gpu ? kDeviceStepTimeoutSeconds : kHostStepTimeoutSeconds;
    const int seconds = options.step_timeout_seconds;
    liveness_.emplace(std::chrono::seconds(seconds == 0 ? usual : seconds));
  }
  return liveness_->Stalled(engine.Stats(), pool.progress(), now);
}

grpc::Status ServiceContext::CheckLoaded() const {
  if (engine() != nullptr) return grpc::Status::OK;
  metrics->OnRejected("loading");
  return ToGrpcStatus(absl::UnavailableError("the model is loading"),
                      {"MODEL_LOADING", {}, kLoadingRetry});
}

grpc::Status ServiceContext::CheckServing() const {
  if (!is_draining()) return CheckLoaded();
  return Refusal(absl::UnavailableError("the server is draining"));
}

grpc::Status ServiceContext::BeginPreparation(const TenantPtr& tenant, ClientShares::Share* share) {
  if (grpc::Status serving = CheckServing(); !serving.ok()) return serving;
  // Not read at all: refusals are to cost little.
  if (const absl::Status full = engine()->CheckQueue(tenant); !full.ok()) return Refusal(full);
  // The engine, which knows how many wait and run, counts what is prepared.
  const int limit = options.engine.max_queued_requests + options.engine.max_running_requests;
  const int most = MostOfClient(options.engine);
  *share = preparing.Join(tenant->name, most);
  if (*share != nullptr && preparing.num_requests() <= limit) return grpc::Status::OK;
  const bool of_all = *share != nullptr;
  share->reset();
  return Refusal(
      of_all ? LimitReached(
                   kQueuedRequests, LimitOf::kAll,
                   absl::StrCat(limit, " requests are being read, as many as can wait and run"))
             : LimitReached(kQueuedRequests, LimitOf::kTenant,
                            absl::StrCat(most,
                                         " requests of this client are being read, as many as it "
                                         "can have waiting and running")));
}

grpc::Status ServiceContext::TakeMemory(const Caller& caller, int64_t bytes,
                                        MemoryBudget::Share* share) {
  MemoryBudget& own = caller.calls->memory();
  auto taken = own.Take(bytes);
  if (taken.has_value()) {
    *share = *std::move(taken);
    return grpc::Status::OK;
  }
  metrics->OnRejected("memory");
  const bool of_tenant = !own.HasRoom(bytes);
  const MemoryBudget& full = of_tenant ? own : memory;
  const std::string limit = absl::StrCat(full.limit());
  const absl::Status refused =
      LimitReached(kRequestMemoryBytes, of_tenant ? LimitOf::kTenant : LimitOf::kAll,
                   absl::StrCat("the request needs ", bytes, " bytes outside the KV cache, ",
                                full.used(), " of ", limit, of_tenant ? " of its tenant" : "",
                                " are in use; send less text in one message",
                                of_tenant ? "" : ", or see --max-request-memory-bytes"));
  // What can never be had is not worth a second try.
  const bool never = bytes > full.limit();
  return ToGrpcStatus(
      refused, {"REQUEST_MEMORY",
                {{"limit_bytes", limit}},
                never ? std::chrono::milliseconds(0) : std::max(RetryDelay(), kMemoryRetry)});
}

grpc::Status ServiceContext::TakeRequests(const Caller& caller, int64_t requests, int64_t tokens) {
  const auto wait = caller.calls->TakeRequests(requests, tokens, clock());
  if (!wait.has_value()) return grpc::Status::OK;
  metrics->OnRejected("rate");
  return ToGrpcStatus(LimitReached(wait->limit, LimitOf::kTenant,
                                   absl::StrCat("the tenant has had its ", wait->per_minute, " ",
                                                wait->what, " of this minute")),
                      {"RATE_LIMIT", {}, wait->time});
}

DocumentUpload::Surroundings ServiceContext::ForUploads(const Tokenizer& tokenizer) {
  return {tokenizer, &memory, clock, std::chrono::seconds(options.requests.upload_expiry_seconds)};
}

grpc::Status ServiceContext::Refusal(const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      metrics->OnRejected("queue");
      return ToGrpcStatus(status, {"QUEUE_FULL", {}, RetryDelay()});
    case absl::StatusCode::kUnavailable:
      metrics->OnRejected("draining");
      return ToGrpcStatus(status, {"DRAINING", {}, kDrainingRetry});
    case absl::StatusCode::kFailedPrecondition:
      if (const auto expected = status.GetPayload(kExpectedSecondsPayload)) {
        metrics->OnRejected("deadline");
        return ToGrpcStatus(
            status,
            {"DEADLINE_TOO_SOON", {{"expected_seconds", std::string(*expected)}}, RetryDelay()});
      }
      metrics->OnRejected("capacity");
      return ToGrpcStatus(status);
    default:
      return ToGrpcStatus(status);
  }
}

}  // namespace folio::server
