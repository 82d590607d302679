#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "engine/base/catch_errors.h"
#include "engine/runtime/cuda_maker.h"
#include "server/exit_code.h"
#include "server/logging.h"
#include "server/memory_trim.h"
#include "server/options.h"
#include "server/quit_listener.h"
#include "server/runner.h"

namespace {

using folio::Engine;
using folio::EngineOptions;
using folio::server::CodeOfLoad;
using folio::server::CodeOfStart;
using folio::server::ExitCode;
using folio::server::ParseOptions;
using folio::server::ParseResult;
using folio::server::QuitListener;
using folio::server::Runner;
using folio::server::ServerOptions;

// Where --step-timeout-seconds says nothing; a step takes less on any device.
constexpr int kStepTimeoutSeconds = 600;

// SIGTERM and SIGINT, blocked in every thread that is made later, as is SIGQUIT.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t blocked = signals;
  sigaddset(&blocked, SIGQUIT);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  return signals;
}

int Fail(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "folio-server: %s\n", std::string(status.message()).c_str());
  return code;
}

// After a drain: what is left should take no time, but a step that is stuck would keep the engine
// from ending, and nobody watches it any more. `seconds` later, or for one more signal, the process
// ends as it is.
void EndAnyway(const sigset_t& signals, int seconds) {
  std::thread([signals, seconds] {
    const timespec patience{seconds, 0};
    while (sigtimedwait(&signals, nullptr, &patience) < 0 && errno == EINTR) {
    }
    std::_Exit(folio::server::kExitHangs);
  }).detach();
}

int Serve(ServerOptions options, const sigset_t& signals) {
  std::atomic<bool> device_failed{false};
  options.engine.make_cuda = folio::CudaMaker();
  options.engine.on_device_failure = [&device_failed](const absl::Status& status) {
    spdlog::error("the device failed, stopping: {}", std::string(status.message()));
    device_failed.store(true);
    kill(getpid(), SIGTERM);
  };
  options.on_stall = [] { std::_Exit(folio::server::kExitHangs); };
  Runner runner(options, [](const EngineOptions& engine) { return Engine::Create(engine); });
  const QuitListener quits([&runner] {
    for (const std::string& line : runner.DescribeState()) folio::server::LogAlways(line);
  });
  if (absl::Status started = runner.Start(); !started.ok()) {
    return Fail(started, CodeOfStart(started));
  }
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
    std::_Exit(folio::server::kExitDone);
  }
  loader.join();
  if (!loaded.ok()) return Fail(loaded, CodeOfLoad(loaded));
  spdlog::info("draining for at most {} s", options.drain_seconds);
  runner.Drain([&signals] {
    const timespec now{0, 0};
    return sigtimedwait(&signals, nullptr, &now) > 0;
  });
  spdlog::info("stopped");
  const int step_timeout = options.step_timeout_seconds;
  EndAnyway(signals, step_timeout > 0 ? step_timeout : kStepTimeoutSeconds);
  return device_failed.load() ? folio::server::kExitDeviceFailed : folio::server::kExitDone;
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
  int exit_code = folio::server::kExitFault;
  const absl::Status served =
      folio::CatchErrors([&] { exit_code = Serve(options, BlockSignals()); });
  if (served.ok()) return exit_code;
  return Fail(served, absl::IsResourceExhausted(served) ? folio::server::kExitNoMemory
                                                        : folio::server::kExitFault);
}
