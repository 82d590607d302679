// A whole load test: connect, run, check, report.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/options.h"
#include "loadtest/report.h"

namespace folio::loadtest {

// Runs the load of `options` over `channels` in turn, of which there is one at least, then waits
// for the server to be idle and repeats greedy answers if asked to. Blocks. Errors: of the first
// calls to the server; INVALID_ARGUMENT if prompts exceed its limits. What goes wrong in the load
// itself is part of the result.
absl::StatusOr<RunResult> RunLoadTest(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                                      const Options& options);

}  // namespace folio::loadtest
