#pragma once

#include <vector>

#include "server/call_end.h"
#include "server/call_registry.h"
#include "server/span_exporter.h"

namespace folio::server {

// What a trace shows of a call that is done: the call, and in it the phases that came. `now` is the
// time of its end, by the clock of the call. REQUIRES: it is in a trace.
std::vector<otlp::Span> SpansOf(const RunningCall& call, const CallEnd& end, SteadyTime now);

}  // namespace folio::server
