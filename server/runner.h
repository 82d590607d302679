#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/engine.h"
#include "server/clock.h"
#include "server/options.h"

namespace folio::server {

// Makes the engine; the real one in production, a fake in tests.
using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineOptions&)>;

// The life of the process: listens at once, loads the model beside, serves, drains, stops. Health
// follows: "liveness" from the beginning, "", "readiness" and the services once the model is loaded
// and until the drain.
class Runner {
 public:
  Runner(
      ServerOptions options, EngineFactory factory,
      Clock clock = [] { return std::chrono::steady_clock::now(); });
  ~Runner();

  // Errors: UNAVAILABLE when an address cannot be bound, RESOURCE_EXHAUSTED without address space,
  // those of files that options name.
  absl::Status Start();
  // Loads the model and marks the server ready. Blocks. Errors: those of Engine::Create.
  absl::Status LoadModel();
  // Refuses new work, lets streams end for at most drain_seconds (fewer if `hurry`, asked now and
  // then, turns true), ends the others with UNAVAILABLE, and stops. Blocks.
  void Drain(const std::function<bool()>& hurry);

  // The model is loaded, and the server takes calls. Any thread.
  bool is_ready() const;
  // What the server does at this moment, line by line (server/state_report.h). Any thread.
  std::vector<std::string> DescribeState();

  // A channel to the server without the network. REQUIRES: Start was OK.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  int grpc_port() const;
  int metrics_port() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace folio::server
