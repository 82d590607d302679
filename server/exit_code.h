#pragma once

#include "absl/status/status.h"

namespace folio::server {

// How folio-server ends; docs/runbook.md says what to do about each.
enum ExitCode : int {
  // Drained after SIGTERM or SIGINT; stopped by one while the model was loaded; --help, --version,
  // --print-config.
  kExitDone = 0,
  // A flag, an environment variable, a file of --config, --tenants or --tls-*.
  kExitBadConfig = 1,
  // An address that cannot be bound; --port-file that cannot be written.
  kExitCannotListen = 2,
  // The model, an adapter, --kv-dir or the device.
  kExitCannotLoad = 3,
  // Memory, address space or threads at the start.
  kExitNoMemory = 4,
  // A step of the engine or a thread has stopped.
  kExitHangs = 5,
  // The device failed while it served.
  kExitDeviceFailed = 6,
  // A fault of the server.
  kExitFault = 7,
};

// Of Runner::Start.
inline ExitCode CodeOfStart(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return kExitNoMemory;
  return absl::IsUnavailable(status) ? kExitCannotListen : kExitBadConfig;
}

// Of Runner::LoadModel.
inline ExitCode CodeOfLoad(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? kExitNoMemory : kExitCannotLoad;
}

}  // namespace folio::server
