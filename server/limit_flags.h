#pragma once

#include "absl/status/status.h"
#include "server/options.h"

namespace CLI {
class App;
}

namespace folio::server {

// Adds the flags of all limits, a group of --help; the flags that are added later are in it, too.
// docs/limits.md has the reason of each.
void AddLimitFlags(CLI::App* app, ServerOptions* options);

// To be called when `app` has read the command line. A limit that is part of another one, and that
// the command line does not have, is lowered to it. Errors: INVALID_ARGUMENT naming both flags when
// the command line has it and it is larger.
absl::Status FitLimits(const CLI::App& app, ServerOptions* options);

}  // namespace folio::server
