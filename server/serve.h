#pragma once

#include "server/exit_code.h"
#include "server/options.h"
#include "server/runner.h"

namespace folio::server {

// The process from its options to its exit code: loads the model and serves until SIGTERM or
// SIGINT, or until the device fails, drains, and stops; SIGQUIT logs what it does. What went wrong
// is one line on stderr. Blocks. REQUIRES: no other thread runs that does not block these signals.
ExitCode Serve(ServerOptions options, const EngineFactory& factory);

}  // namespace folio::server
