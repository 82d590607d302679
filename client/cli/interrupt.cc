#include "client/cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "client/cli/exit_code.h"

namespace folio::cli {
namespace {

// Ends the watching thread.
constexpr int kStopSignal = SIGUSR1;

sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, kStopSignal);
  return signals;
}

}  // namespace

InterruptWatcher::InterruptWatcher() {
  const sigset_t signals = WatchedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  pthread_create(&thread_, nullptr, &InterruptWatcher::Watch, this);
}

InterruptWatcher::~InterruptWatcher() {
  pthread_kill(thread_, kStopSignal);
  pthread_join(thread_, nullptr);
}

void* InterruptWatcher::Watch(void* self) {
  const sigset_t signals = WatchedSignals();
  client::CancelSource& source = static_cast<InterruptWatcher*>(self)->source_;
  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal != kStopSignal) {
    if (!source.request_stop()) _exit(kExitInterrupted);
  }
  return nullptr;
}

}  // namespace folio::cli
