#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "engine/base/catch_errors.h"
#include "engine/runtime/cuda_maker.h"
#include "server/logging.h"
#include "server/memory_trim.h"
#include "server/options.h"
#include "server/runner.h"

namespace {

using folio::Engine;
using folio::EngineOptions;
using folio::server::ParseOptions;
using folio::server::ParseResult;
using folio::server::Runner;
using folio::server::ServerOptions;

// SIGTERM and SIGINT, blocked in every thread that is made later.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "folio-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Serve(ServerOptions options, const sigset_t& signals) {
  std::atomic<bool> device_failed{false};
  options.engine.make_cuda = folio::CudaMaker();
  options.engine.on_device_failure = [&device_failed](const absl::Status& status) {
    spdlog::error("the device failed, stopping: {}", std::string(status.message()));
    device_failed.store(true);
    kill(getpid(), SIGTERM);
  };
  options.on_stall = [] { std::_Exit(1); };
  Runner runner(options, [](const EngineOptions& engine) { return Engine::Create(engine); });
  if (absl::Status started = runner.Start(); !started.ok()) return Fail(started);
  spdlog::info("listening on port {}, metrics on port {}, loading {}", runner.grpc_port(),
               runner.metrics_port(), options.engine.model_dir);
  absl::Status loaded;
  std::atomic<bool> loading{true};
  std::thread loader([&] {
    loaded = runner.LoadModel();
    loading.store(false);
    if (!loaded.ok()) kill(getpid(), SIGTERM);
  });
  int signal = 0;
  sigwait(&signals, &signal);
  if (loading.load()) {
    // Nothing runs yet, and loading cannot be interrupted.
    spdlog::info("stopped while loading");
    std::_Exit(0);
  }
  loader.join();
  if (!loaded.ok()) return Fail(loaded);
  spdlog::info("draining for at most {} s", options.drain_seconds);
  runner.Drain([&signals] {
    const timespec now{0, 0};
    return sigtimedwait(&signals, nullptr, &now) > 0;
  });
  spdlog::info("stopped");
  return device_failed.load() ? 1 : 0;
}

// Connections take descriptors; the usual soft limit is 1,024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  ServerOptions options;
  int parsed = 0;
  if (ParseOptions(argc, argv, &options, &parsed) == ParseResult::kExit) return parsed;
  folio::server::SetUpAllocator();
  folio::server::SetUpLogging(options.log_level, options.log_json);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  int exit_code = 1;
  const absl::Status served =
      folio::CatchErrors([&] { exit_code = Serve(options, BlockStopSignals()); });
  return served.ok() ? exit_code : Fail(served);
}
