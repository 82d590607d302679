#pragma once

#include <string>
#include <vector>

#include "server/service_context.h"

namespace folio::server {

class Edge;

// What a server does at this moment, line by line, for whoever asks a running process by SIGQUIT:
// threads, queue, memory and the calls that run, the oldest first, without any text of theirs.
// Takes no lock that is held during a step of the engine; a bounded number of lines. `edge` may be
// null.
std::vector<std::string> DescribeState(ServiceContext* context, const Edge* edge,
                                       SteadyTime started);

}  // namespace folio::server
