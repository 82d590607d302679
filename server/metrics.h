#pragma once

#include <prometheus/registry.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "engine/runtime/engine.h"
#include "engine/types/request.h"

namespace folio::server {

// All Prometheus metrics, prefix folio_. Counters and histograms are written as things happen; gauges are read
// from the engine at scrape time, so the engine never waits for a scrape. Thread-safe.
class Metrics {
 public:
  Metrics();

  // What an HTTP exposer collects: the registry's own metrics.
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }
  // And the gauges of the engine.
  std::shared_ptr<prometheus::Collectable> EngineCollectable(
      std::function<Engine*()> engine, std::function<int()> num_documents);

  void OnModelLoaded(const EngineInfo& info, double load_seconds);
  void OnAccepted(const std::string& strategy);
  void OnFirstToken(const std::string& strategy, bool has_document, double seconds);
  void OnTokens(const std::string& strategy, int count, double seconds_since_last);
  void OnCompleted(const CompletedEvent& completed, double e2e_seconds);
  void OnFailed(const absl::Status& status, Phase phase);
  void OnRejected(const absl::Status& status);
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

  const std::shared_ptr<prometheus::Registry> registry_;
};

}  // namespace folio::server
