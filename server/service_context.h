#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "server/audit_log.h"
#include "server/auth/authenticator.h"
#include "server/call_log.h"
#include "server/call_registry.h"
#include "server/client_shares.h"
#include "server/clock.h"
#include "server/document_upload.h"
#include "server/document_watches.h"
#include "server/event_pump.h"
#include "server/heartbeat.h"
#include "server/liveness.h"
#include "server/memory_budget.h"
#include "server/memory_trim.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/prompt_pool.h"
#include "server/self_probe.h"
#include "server/service_rate.h"
#include "server/span_exporter.h"
#include "server/status_mapping.h"
#include "server/tenant_metrics.h"
#include "server/trace_context.h"

namespace folio::server {

// Counts what has not ended, for the drain. Thread-safe.
class StreamCount {
 public:
  void Add();
  void Remove();
  // Waits until nothing is left, `deadline` has passed or `hurry()`, asked every 20 ms, turns true.
  // Returns whether nothing is left.
  bool WaitUntilZero(SteadyTime deadline, const std::function<bool()>& hurry);

 private:
  Mutex mu_;
  CondVar changed_;
  int count_ FOLIO_GUARDED_BY(mu_) = 0;
};

// What every service works with. Built by the runner before the first call; thread-safe.
class ServiceContext {
  // Before the pump, which works with it at once.
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
  // The pump and the thread of the listener look at each other about every half second.
  Heartbeat pump_beat_;
  Heartbeat listener_beat_;
  Mutex probe_mu_;
  std::optional<SelfProbe> probe_ FOLIO_GUARDED_BY(probe_mu_);
  // Pump thread only.
  MemoryTrim trim_;
  std::optional<Liveness> liveness_;
  std::optional<SteadyTime> stalled_;
  bool gave_up_ = false;

 public:
  ServiceContext(const ServerOptions& options, Clock clock, Metrics* metrics);

  // The engine, or nullptr while the model is loading. The engine stays until all calls have ended.
  Engine* engine() const { return engine_.load(std::memory_order_acquire); }
  void set_engine(Engine* engine) { engine_.store(engine, std::memory_order_release); }

  // Called on the pump thread when the engine, the prompt pool, the listener or a port hang:
  // streams are ended, and options.on_stall ends the process a moment later.
  std::function<void(const std::string& what)> on_hang;

  // From the thread of the listener, about every half second: it goes on. False once, when the pump
  // does not, which decides about everything else.
  bool PumpGoesOn();
  // From now on these are asked now and then whether they answer.
  void Probe(std::vector<SelfProbe::Port> ports);

  // New work is refused from now on.
  void StartDrain() { draining_.store(true); }
  bool is_draining() const { return draining_.load(); }

  // When these threads last went on.
  const Heartbeat& pump_beat() const { return pump_beat_; }
  const Heartbeat& listener_beat() const { return listener_beat_; }

  // Who calls, as Authenticator says it; what is refused is counted.
  grpc::Status Authenticate(const grpc::ServerContextBase& rpc, Caller* caller);
  // Reads the file of --tenants. Errors: those of Authenticator::Load.
  absl::Status LoadTenants();
  // UNAVAILABLE while the model loads; after OK engine() is not null.
  grpc::Status CheckLoaded() const;
  // CheckLoaded for new work: UNAVAILABLE while the server drains, too.
  grpc::Status CheckServing() const;
  // CheckServing for a request that will wait; it counts as being prepared while it holds its
  // share. RESOURCE_EXHAUSTED when as many are, in all or of this client, as can wait and run.
  grpc::Status BeginPreparation(const TenantPtr& tenant, ClientShares::Share* preparing);
  // RESOURCE_EXHAUSTED when the requests of the caller, or all together, hold too much to take
  // `bytes` more.
  grpc::Status TakeMemory(const Caller& caller, int64_t bytes, MemoryBudget::Share* share);
  // Counts so many requests with so many tokens of prompts to the rates of the caller.
  // RESOURCE_EXHAUSTED: it has had as much as it may for now.
  grpc::Status TakeRequests(const Caller& caller, int64_t requests, int64_t tokens);
  DocumentUpload::Surroundings ForUploads(const Tokenizer& tokenizer);
  // The trace that a call belongs to.
  TraceContext TraceOf(const grpc::CallbackServerContext& rpc) const {
    return server::TraceOf(rpc, /*begin=*/spans != nullptr);
  }
  // A call that is done: counted, audited if that is wanted, and logged as far as the log has room.
  void Keep(const RpcRecord& call);
  // The status of an engine that refuses a request or document, with reason and retry delay.
  grpc::Status Refusal(const absl::Status& status) const;

  const ServerOptions options;
  const Clock clock;
  Metrics* const metrics;
  PeerNames peer_names;
  MemoryBudget memory;
  Authenticator authenticator{&peer_names, &memory};
  AuditLog audit;
  ServiceRate rate;
  StreamCount streams;
  CallRegistry calls;
  CallLog log;
  TenantMetrics tenants;
  const std::unique_ptr<SpanExporter> spans;  // null: none are wanted
  ClientShares preparing;  // requests that the prompt pool has not handed to the engine yet
  PromptPool pool;
  DocumentWatches watches{&pump, [this] { return engine(); }};
  EventPump pump;

 private:
  std::chrono::milliseconds RetryDelay() const;
  void KeepHouse(SteadyTime now);
  void LookAtTenants();
  void CheckLiveness(SteadyTime now);
  // If something does.
  std::optional<std::string> WhatHangs(SteadyTime now);
  std::optional<std::string> EngineHangs(const Engine& engine, SteadyTime now);
};

}  // namespace folio::server
