// A whole load test: connect, run, check, report.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "loadtest/options.h"
#include "loadtest/report.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace folio::loadtest {

// Runs the load of `options` over `channel`, then waits for the server to be idle and repeats
// greedy answers if asked to. Blocks. Errors: of the first calls to the server; INVALID_ARGUMENT if
// prompts exceed its limits. What goes wrong in the load itself is part of the result.
absl::StatusOr<RunResult> RunLoadTest(const std::shared_ptr<grpc::Channel>& channel,
                                      const Options& options);

}  // namespace folio::loadtest
