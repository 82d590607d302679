#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/engine.h"
#include "server/document_registry.h"
#include "server/event_pump.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/prompt_pool.h"

namespace folio::server {

// What every service works with. Built by the runner before the first call; thread-safe.
class ServiceContext {
 public:
  ServiceContext(const ServerOptions& options, Metrics* metrics)
      : options(options), metrics(metrics), documents(options.max_documents) {}

  // The engine, or UNAVAILABLE while the model is loading.
  absl::StatusOr<Engine*> engine() const {
    Engine* engine = engine_.load(std::memory_order_acquire);
    if (engine == nullptr) return absl::UnavailableError("the model is loading");
    return engine;
  }
  void set_engine(Engine* engine) { engine_.store(engine, std::memory_order_release); }

  const ServerOptions options;
  Metrics* const metrics;
  DocumentRegistry documents;
  PromptPool pool{2};
  EventPump pump;
  // Streams that have not ended, for the drain.
  std::atomic<int> active_streams{0};

 private:
  std::atomic<Engine*> engine_{nullptr};
};

}  // namespace folio::server
