#include "server/serve.h"

#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/catch_errors.h"
#include "server/batch_scheduling.h"
#include "server/logging.h"
#include "server/quit_listener.h"

namespace folio::server {
namespace {

// Where --step-timeout-seconds says nothing; a step takes less on any device.
constexpr int kStepTimeoutSeconds = 600;
// What an end in good order has after a further signal; another one ends that too.
constexpr int kHurriedSeconds = 2;

ExitCode Fail(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "folio-server: %s\n", std::string(status.message()).c_str());
  return code;
}

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

// True for one of the signals, false after so many seconds without.
bool WaitFor(const sigset_t& signals, int seconds) {
  const timespec patience{seconds, 0};
  int signal = 0;
  while ((signal = sigtimedwait(&signals, nullptr, &patience)) < 0 && errno == EINTR) {
  }
  return signal > 0;
}

// After a drain: what is left should take no time, but a step that is stuck would keep the engine
// from ending, and nobody watches it any more. `seconds` later the process ends as it is; sooner
// for one more signal, which may as well have come while all was about to end.
void EndAnyway(const sigset_t& signals, int seconds) {
  std::thread([signals, seconds] {
    if (WaitFor(signals, seconds)) WaitFor(signals, kHurriedSeconds);
    std::_Exit(kExitHangs);
  }).detach();
}

ExitCode ServeUntilSignal(ServerOptions options, const EngineFactory& factory,
                          const sigset_t& signals) {
  std::atomic<bool> device_failed{false};
  const auto code_of_end = [&] { return device_failed.load() ? kExitDeviceFailed : kExitDone; };
  options.engine.on_device_failure = [&device_failed](const absl::Status& status) {
    spdlog::error("the device failed, stopping: {}", std::string(status.message()));
    device_failed.store(true);
    kill(getpid(), SIGTERM);
  };
  options.on_stall = [] { std::_Exit(kExitHangs); };
  auto batch = std::make_unique<BatchScheduling>();
  Runner runner(options, factory);
  const QuitListener quits([&runner] {
    for (const std::string& line : runner.DescribeState()) LogAlways(line);
  });
  if (absl::Status started = runner.Start(); !started.ok()) {
    return Fail(started, CodeOfStart(started));
  }
  batch.reset();  // the engine's threads come next
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
  if (loading.load() && !runner.is_ready()) {
    // Nothing runs yet, and loading cannot be interrupted.
    spdlog::info("stopped while loading");
    std::_Exit(code_of_end());
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
  return code_of_end();
}

}  // namespace

ExitCode Serve(ServerOptions options, const EngineFactory& factory) {
  ExitCode code = kExitFault;
  const absl::Status served =
      CatchErrors([&] { code = ServeUntilSignal(std::move(options), factory, BlockSignals()); });
  if (served.ok()) return code;
  return Fail(served, absl::IsResourceExhausted(served) ? kExitNoMemory : kExitFault);
}

}  // namespace folio::server
