#pragma once

#include "absl/status/status.h"
#include "server/options.h"

namespace folio::server {

// What must hold between the flags of the ports, wherever they were set. INVALID_ARGUMENT for files
// that are of no use without others, and for a port that other hosts reach though it asks nobody
// who they are and lets everybody read along, unless --insecure wants it so.
absl::Status CheckPortFlags(const ServerOptions& options);

}  // namespace folio::server
