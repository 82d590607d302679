#include <signal.h>
#include <sys/resource.h>

#include "absl/synchronization/mutex.h"
#include "engine/runtime/cuda_maker.h"
#include "engine/runtime/engine.h"
#include "server/logging.h"
#include "server/memory_trim.h"
#include "server/options.h"
#include "server/serve.h"

namespace {

using folio::Engine;
using folio::EngineOptions;
using folio::server::ParseOptions;
using folio::server::ParseResult;
using folio::server::ServerOptions;

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
  // Debian's Abseil is built with its debug checks: every lock of gRPC would be searched for
  // cycles.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  options.engine.make_cuda = folio::CudaMaker();
  return folio::server::Serve(options,
                              [](const EngineOptions& engine) { return Engine::Create(engine); });
}
