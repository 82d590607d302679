#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "server/options.h"
#include "server/runner.h"

namespace {

using folio::Engine;
using folio::server::ParseOptions;
using folio::server::ParseResult;
using folio::server::Runner;
using folio::server::ServerOptions;

void SetUpLogging(const ServerOptions& options) {
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  if (options.log_json) {
    spdlog::set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
  }
}

// Waits for SIGTERM or SIGINT, which every thread has blocked.
void WaitForSignal(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "folio-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Serve(const ServerOptions& options, const sigset_t& signals) {
  Runner runner(options, [&](const folio::EngineOptions& engine) { return Engine::Create(engine); });
  if (absl::Status started = runner.Start(); !started.ok()) return Fail(started);
  spdlog::info("listening on port {}, loading {}", runner.grpc_port(), options.engine.model_dir);
  absl::Status loaded;
  std::thread loader([&] {
    loaded = runner.LoadModel();
    if (!loaded.ok()) kill(getpid(), SIGTERM);
  });
  WaitForSignal(signals);
  loader.join();
  if (!loaded.ok()) return Fail(loaded);
  spdlog::info("draining for at most {} s", options.drain_seconds);
  runner.Drain([&signals] {
    const timespec now{0, 0};
    return sigtimedwait(&signals, nullptr, &now) > 0;
  });
  spdlog::info("stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ServerOptions options;
  int exit_code = 0;
  if (ParseOptions(argc, argv, &options, &exit_code) == ParseResult::kExit) return exit_code;
  SetUpLogging(options);
  // Before any thread exists, so that only WaitForSignal sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return Serve(options, signals);
}
