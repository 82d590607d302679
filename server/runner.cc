#include "server/runner.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/memory.h"
#include "engine/base/status_macros.h"
#include "server/edge/edge.h"
#include "server/metrics_listener.h"
#include "server/services.h"
#include "server/slow_step_log.h"
#include "server/state_report.h"

namespace folio::server {
namespace {

constexpr const char* kServices[] = {"folio.v1.Inference", "folio.v1.Documents", "folio.v1.Text",
                                     "folio.v1.Control"};
// For the last statuses to reach their clients, after the streams were told to end.
constexpr std::chrono::seconds kLastWrites{2};
// Of the stacks and allocator arenas of all threads but the engine's: where gRPC gets no thread, it
// aborts.
constexpr int64_t kThreadBytes = int64_t{384} << 20;

void SetArguments(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.edge.connection.max_message_bytes));
  // 1.51 counts a compressed message before it inflates.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              options.edge.connection.max_open_streams / 2);
  // Find dead peers during a long silence of the network; tolerate clients that ping too.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Let clients of a headless Service find new replicas; streams get an hour to end.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 30 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 60 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void LogModel(const Engine& engine, int grpc_port) {
  const EngineInfo& info = engine.info();
  spdlog::info("serving {}{} on port {}: {} parameters, {} weights, {} threads on {}, {} MiB of KV",
               info.model_name, info.synthetic ? " (synthetic weights)" : "", grpc_port,
               info.num_parameters, info.weight_dtype, info.num_threads, info.backend,
               info.kv_capacity_bytes >> 20);
  if (!info.weight_conversion.empty()) spdlog::info("weights: {}", info.weight_conversion);
  spdlog::info("memory: {}", info.memory_plan);
  if (info.chat != nullptr) spdlog::info("chat format: {}", info.chat->format().name);
  if (!info.chat_note.empty()) spdlog::warn("{}", info.chat_note);
  if (info.sliding_window > 0) {
    spdlog::info(
        "config.json has a sliding window of {} tokens, which bounds the default strategy: "
        "requests "
        "that are to see more name another one, like long_heads",
        info.sliding_window);
  }
}

// At most one line a second of what clients can cause as they like.
class LineRate {
 public:
  bool Allow(SteadyTime now) {
    if (now < next_) return false;
    next_ = now + std::chrono::seconds(1);
    return true;
  }

 private:
  SteadyTime next_{};
};

}  // namespace

struct Runner::State {
  State(ServerOptions o, EngineFactory f, Clock clock)
      : options(std::move(o)),
        factory(std::move(f)),
        started(clock()),
        context(options, std::move(clock), &metrics) {
    context.on_hang = [this](const std::string& what) {
      spdlog::critical("{}: the process ends", what);
      SetReady(false);
      SetLive(false);
      context.pump.StopAll(absl::UnavailableError(absl::StrCat(what, ", the server restarts")));
    };
  }

  // grpc.health.v1, and what the metrics port says beside it.
  void SetLive(bool is_live) {
    live.store(is_live);
    server->GetHealthCheckService()->SetServingStatus("liveness", is_live);
  }
  void SetReady(bool is_ready) {
    ready.store(is_ready);
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus("", is_ready);
    health->SetServingStatus("readiness", is_ready);
    for (const char* service : kServices) health->SetServingStatus(service, is_ready);
  }
  absl::Status Listen();
  absl::Status StartMetrics();
  void ProbePorts();
  int metrics_port() const { return metrics_listener == nullptr ? 0 : metrics_listener->port(); }
  absl::Status WritePortFile() const;
  // All calls have ended afterwards.
  void StopServer();

  const ServerOptions options;
  const EngineFactory factory;
  const SteadyTime started;
  // Set once there is one, for DescribeState.
  std::atomic<const Edge*> listener{nullptr};
  std::atomic<bool> live{false};
  std::atomic<bool> ready{false};
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  ServiceContext context;
  InferenceService inference{&context};
  DocumentsService documents{&context};
  TextService text{&context};
  ControlService control{&context};
  std::unique_ptr<MetricsListener> metrics_listener;
  // For the thread of the listener, once it is there and if it speaks TLS.
  std::atomic<MetricsListener*> metrics_port_tls{nullptr};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  LineRate bad_tls_lines;  // thread of the listener
  std::unique_ptr<Edge> edge;
};

Runner::Runner(ServerOptions options, EngineFactory factory, Clock clock)
    : state_(std::make_unique<State>(std::move(options), std::move(factory), std::move(clock))) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

// Calls end first, then what works for them, then the engine; its last events still find the pump.
Runner::~Runner() {
  State& s = *state_;
  s.StopServer();
  s.metrics_listener.reset();
  s.context.pool.Stop();
  s.context.pump.StopHousekeeping();  // it looks at the engine
  s.context.set_engine(nullptr);
  s.engine.reset();
}

void Runner::State::StopServer() {
  if (server == nullptr) return;
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  if (edge != nullptr) edge->Stop();
}

// gRPC is built before: it serves what the edge hands over.
absl::Status Runner::State::Listen() {
  Edge::Hooks hooks;
  hooks.peer_names = &context.peer_names;
  hooks.handover = [this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  // The pump cannot tell the streams; whoever waits sees the connection end.
  hooks.on_sweep = [this] {
    if (context.PumpGoesOn() || !options.on_stall) return;
    spdlog::critical("the event pump has stopped: the process ends");
    options.on_stall();
  };
  hooks.on_bad_tls = [this](const std::string& peer, const std::string& why) {
    if (!bad_tls_lines.Allow(std::chrono::steady_clock::now())) return;
    spdlog::warn("no TLS with {}: {}", peer, why);
  };
  hooks.on_certificate = [this](absl::Status loaded) {
    MetricsListener* const metrics_port = metrics_port_tls.load();
    if (loaded.ok() && metrics_port != nullptr) loaded = metrics_port->ReadTlsAgain();
    if (loaded.ok()) return spdlog::info("new connections have the changed files of --tls-cert");
    spdlog::error("the changed files of --tls-* are not used: {}", std::string(loaded.message()));
  };
  std::unique_ptr<TlsReloader> tls;
  if (options.tls.enabled()) {
    FOLIO_ASSIGN_OR_RETURN(tls, TlsReloader::Start(options.tls));
  }
  auto started =
      Edge::Start(options.listen, options.edge, context.clock, std::move(hooks), std::move(tls));
  if (!started.ok()) return started.status();
  edge = *std::move(started);
  listener.store(edge.get());
  return absl::OkStatus();
}

std::shared_ptr<grpc::Channel> Runner::InProcessChannel() {
  return state_->server->InProcessChannel(grpc::ChannelArguments());
}

int Runner::grpc_port() const { return state_->edge->port(); }
int Runner::metrics_port() const { return state_->metrics_port(); }

absl::Status Runner::State::StartMetrics() {
  if (options.metrics_listen == "off") return absl::OkStatus();
  MetricsAnswers answers;
  answers.live = [this] { return live.load(); };
  answers.ready = [this] { return ready.load(); };
  if (options.metrics_tokens) {
    answers.may_read = [this](std::string_view authorization) {
      return context.authenticator.MayReadMetrics(authorization);
    };
  }
  auto started = MetricsListener::Start(
      options.metrics_listen, options.metrics, options.metrics_tls ? options.tls : TlsFiles(),
      {metrics.registry(), Metrics::EngineCollectable([this] { return context.engine(); }),
       Metrics::EdgeCollectable(edge.get()), Metrics::SpanCollectable(context.spans.get()),
       Metrics::CallCollectable(&context)},
      std::move(answers));
  if (!started.ok()) return started.status();
  metrics_listener = *std::move(started);
  if (options.metrics_tls) metrics_port_tls.store(metrics_listener.get());
  return absl::OkStatus();
}

void Runner::State::ProbePorts() {
  std::vector<SelfProbe::Port> ports;
  // Below the smaller of its limits it takes one more without closing another.
  const int few = std::min(edge->limits().max_connections, edge->limits().max_connections_per_peer);
  ports.push_back({"the listener", edge->address(),
                   options.tls.enabled() ? TlsQuestion() : Http2Question(),
                   [this, few] { return edge->num_connections() < few; }});
  if (metrics_listener != nullptr) {
    ports.push_back({"the metrics port", metrics_listener->address(),
                     options.metrics_tls ? TlsQuestion() : Http1Question()});
  }
  context.Probe(std::move(ports));
}

absl::Status Runner::State::WritePortFile() const {
  if (options.port_file.empty()) return absl::OkStatus();
  const std::string temporary = options.port_file + ".tmp";
  {
    std::ofstream file(temporary);
    file << "{\"grpc\": " << edge->port() << ", \"metrics\": " << metrics_port() << "}\n";
    if (!file.flush()) {
      return absl::UnavailableError(absl::StrCat("cannot write ", options.port_file));
    }
  }
  if (std::rename(temporary.c_str(), options.port_file.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", options.port_file));
  }
  return absl::OkStatus();
}

absl::Status Runner::Start() {
  State& s = *state_;
  if (const auto room = Buffer::Create(HostMemory(), kThreadBytes); !room.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        room.status().message(), " for the threads of the server; raise RLIMIT_AS (ulimit -v)"));
  }
  FOLIO_RETURN_IF_ERROR(CheckCollectorRoots(s.options.otlp_ca));
  FOLIO_RETURN_IF_ERROR(s.context.LoadTenants());
  if (!s.options.audit_log.empty()) {
    FOLIO_RETURN_IF_ERROR(s.context.audit.Open(s.options.audit_log));
  }
  grpc::ServerBuilder builder;
  SetArguments(s.options, &builder);
  s.acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  builder.RegisterService(&s.inference);
  builder.RegisterService(&s.documents);
  builder.RegisterService(&s.text);
  builder.RegisterService(&s.control);
  s.server = builder.BuildAndStart();
  if (s.server == nullptr) return absl::UnavailableError("gRPC does not start");
  s.SetReady(false);
  s.SetLive(true);
  if (absl::Status listening = s.Listen(); !listening.ok()) return listening;
  if (absl::Status started = s.StartMetrics(); !started.ok()) return started;
  s.ProbePorts();
  return s.WritePortFile();
}

absl::Status Runner::LoadModel() {
  State& s = *state_;
  const auto start = std::chrono::steady_clock::now();
  return StatusOf([&]() -> absl::Status {
    EngineOptions engine = s.options.engine;
    engine.restore_attachment = [&s](const StoredText& stored, const Tokenizer& tokenizer) {
      return std::make_shared<DocumentUpload>(stored, s.context.ForUploads(tokenizer));
    };
    engine.on_document_change = [&s](const DocumentHandle& document) {
      s.context.watches.OnChange(document);
    };
    engine.on_slow_step = [&s](const SlowStep& step) {
      spdlog::warn("{}", DescribeSlowStep(step, &s.context.calls));
    };
    FOLIO_ASSIGN_OR_RETURN(s.engine, s.factory(engine));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    s.metrics.OnModelLoaded(s.engine->info(), seconds.count());
    s.context.set_engine(s.engine.get());
    LogModel(*s.engine, s.edge->port());
    s.SetReady(true);
    return absl::OkStatus();
  });
}

bool Runner::is_ready() const { return state_->ready.load(); }

std::vector<std::string> Runner::DescribeState() {
  State& s = *state_;
  return server::DescribeState(&s.context, s.listener.load(), s.started);
}

void Runner::Drain(const std::function<bool()>& hurry) {
  State& s = *state_;
  s.SetReady(false);
  s.context.StartDrain();
  if (s.engine != nullptr) s.engine->StopAdmission();
  if (s.edge != nullptr) s.edge->Drain();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(s.options.drain_seconds);
  if (!s.context.streams.WaitUntilZero(deadline, hurry)) {
    spdlog::warn("ending the streams that are still running");
    s.context.pump.StopAll(absl::UnavailableError("the server is stopping"));
    s.context.streams.WaitUntilZero(std::chrono::steady_clock::now() + kLastWrites, hurry);
  }
  s.StopServer();
}

}  // namespace folio::server
