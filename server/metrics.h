#pragma once

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/types/request.h"

namespace folio::server {

class Edge;
class ServiceContext;
class SpanExporter;

// Whether a document's keys and values were there when it was asked.
enum class DocumentUse { kNone, kHit, kMiss };

// The series of one strategy that are written for every token, found once per request.
struct StrategyMetrics {
  prometheus::Counter* generated_tokens = nullptr;
  prometheus::Histogram* inter_token_seconds = nullptr;
  std::array<prometheus::Histogram*, 3> first_token_seconds{};  // by DocumentUse
};

// All Prometheus metrics, prefix folio_. Counters and histograms are written as things happen;
// gauges are read from the engine at scrape time, so the engine never waits for a scrape.
// Thread-safe.
class Metrics {
 public:
  Metrics();

  // What an HTTP exposer collects: the registry's own metrics.
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }
  // And the gauges of the engine, which is nullptr until the model is loaded.
  static std::shared_ptr<prometheus::Collectable> EngineCollectable(
      std::function<Engine*()> engine);

  // And of the listener, which outlives it.
  static std::shared_ptr<prometheus::Collectable> EdgeCollectable(const Edge* edge);

  // And of the exporter of spans, which outlives it; may be null.
  static std::shared_ptr<prometheus::Collectable> SpanCollectable(const SpanExporter* spans);

  // And of the calls: of tenants, and of what logs had no room for. `context` outlives it.
  static std::shared_ptr<prometheus::Collectable> CallCollectable(ServiceContext* context);

  // Lives as long as the metrics.
  const StrategyMetrics* ForStrategy(const std::string& strategy);

  void OnModelLoaded(const EngineInfo& info, double load_seconds);
  void OnAccepted(const std::string& strategy);
  void OnCompleted(const CompletedEvent& completed, double e2e_seconds);
  // A request that ended early, in `phase`: tokenise, queue, prefill or decode.
  void OnFailed(const absl::Status& status, const std::string& phase);
  void OnRejected(const std::string& reason);
  void OnDocumentReady(double seconds);
  void OnRpc(const std::string& method, const std::string& code);

 private:
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const std::map<std::string, std::string>& labels);
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::map<std::string, std::string>& labels,
                                   const std::vector<double>& buckets);
  void SetInfo(const std::string& name, const std::string& help,
               const std::map<std::string, std::string>& labels, double value);
  void CreateKnownSeries();

  const std::shared_ptr<prometheus::Registry> registry_;
  Mutex mu_;
  std::map<std::string, StrategyMetrics> strategies_ FOLIO_GUARDED_BY(mu_);  // entries never move
};

const char* PhaseName(Phase phase);

}  // namespace folio::server
