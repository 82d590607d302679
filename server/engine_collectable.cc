#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/memory_info.h"
#include "engine/base/mutex.h"
#include "server/edge/edge.h"
#include "server/logging.h"
#include "server/metrics.h"
#include "server/service_context.h"
#include "server/span_exporter.h"

namespace folio::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

MetricFamily Family(const std::string& name, const std::string& help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

constexpr double kRateWindowSeconds = 5;
// Scrapes that follow each other closely share one sample.
constexpr double kMinSampleSeconds = 0.5;

void Add(MetricFamily* family, double value, Labels labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  metric.counter.value = value;
  family->metric.push_back(std::move(metric));
}

MetricFamily HistogramOf(const std::string& name, const std::string& help, const StepTimes& times) {
  MetricFamily family = Family(name, help, MetricType::Histogram);
  ClientMetric metric;
  uint64_t count = 0;
  for (size_t n = 0; n < times.counts.size(); ++n) {
    count += static_cast<uint64_t>(times.counts[n]);
    const double end =
        n < StepTimes::kEnds.size() ? StepTimes::kEnds[n] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({count, end});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = times.sum_seconds;
  family.metric.push_back(std::move(metric));
  return family;
}

// Tokens per second, an exponentially weighted mean over about kRateWindowSeconds. A convenience:
// rate() of the counters is exact.
class TokenRate {
 public:
  double Sample(int64_t tokens, double seconds) {
    if (seconds_ == 0) {
      seconds_ = seconds;
      tokens_ = tokens;
    }
    const double elapsed = seconds - seconds_;
    if (elapsed < kMinSampleSeconds) return rate_;
    const double kept = std::exp(-elapsed / kRateWindowSeconds);
    rate_ = kept * rate_ + (1 - kept) * static_cast<double>(tokens - tokens_) / elapsed;
    seconds_ = seconds;
    tokens_ = tokens;
    return rate_;
  }

 private:
  double seconds_ = 0;
  int64_t tokens_ = 0;
  double rate_ = 0;
};

// Reads the engine when scraped.
class EngineGauges final : public prometheus::Collectable {
 public:
  explicit EngineGauges(std::function<Engine*()> engine) : engine_(std::move(engine)) {}

  std::vector<MetricFamily> Collect() const override;

 private:
  void Gauge(const std::string& name, const std::string& help, double value) const
      FOLIO_REQUIRES(mu_) {
    families_->push_back(Family(name, help, MetricType::Gauge));
    Add(&families_->back(), value);
  }
  void CollectDocuments(const DocumentCounts& counts) const FOLIO_REQUIRES(mu_);
  void CollectMemory(const Engine& engine, const EngineStats& stats) const FOLIO_REQUIRES(mu_);
  void CollectSlices(const EngineStats& stats) const FOLIO_REQUIRES(mu_);
  void CollectStore(const EngineStats& stats) const FOLIO_REQUIRES(mu_);
  void CollectTokens(const EngineStats& stats) const FOLIO_REQUIRES(mu_);

  const std::function<Engine*()> engine_;

  // Scrapes run one at a time.
  mutable Mutex mu_;
  mutable std::vector<MetricFamily>* families_ FOLIO_GUARDED_BY(mu_) = nullptr;
  mutable TokenRate prefill_rate_ FOLIO_GUARDED_BY(mu_);
  mutable TokenRate decode_rate_ FOLIO_GUARDED_BY(mu_);
};

void EngineGauges::CollectMemory(const Engine& engine, const EngineStats& stats) const {
  const double used = static_cast<double>(stats.kv_used_bytes + stats.summary_used_bytes);
  const double reserved = static_cast<double>(stats.kv_reserved_bytes);
  const double capacity = static_cast<double>(stats.kv_capacity_bytes);
  families_->push_back(
      Family("folio_kv_cache_usage_ratio", "Reserved share of the tier.", MetricType::Gauge));
  const bool tiered = stats.home != Tier::kDevice;
  const double memory = tiered ? static_cast<double>(stats.kv_memory_bytes) : capacity;
  const double home_used = static_cast<double>(stats.home_used_bytes);
  const std::string counted = !tiered ? "device" : stats.home == Tier::kHost ? "host" : "disk";
  Add(&families_->back(), capacity > 0 ? reserved / capacity : 0, {{"tier", counted}});
  families_->push_back(Family("folio_kv_cache_bytes", "Bytes of KV cache.", MetricType::Gauge));
  Add(&families_->back(), used, {{"tier", "device"}, {"state", "used"}});
  Add(&families_->back(), reserved, {{"tier", counted}, {"state", "reserved"}});
  if (tiered) Add(&families_->back(), home_used, {{"tier", counted}, {"state", "used"}});
  families_->push_back(
      Family("folio_kv_cache_capacity_bytes", "KV cache budget.", MetricType::Gauge));
  Add(&families_->back(), memory, {{"tier", "device"}});
  if (tiered) {
    Add(&families_->back(), capacity, {{"tier", counted}});
    CollectSlices(stats);
    if (stats.stores_documents) CollectStore(stats);
  }
  families_->push_back(Family("folio_memory_bytes", "Memory by component.", MetricType::Gauge));
  Add(&families_->back(), static_cast<double>(engine.info().weight_bytes),
      {{"component", "weights"}});
  Add(&families_->back(), static_cast<double>(stats.kv_used_bytes), {{"component", "kv"}});
  Add(&families_->back(), static_cast<double>(stats.summary_used_bytes),
      {{"component", "chunk_summaries"}});
}

void EngineGauges::CollectSlices(const EngineStats& stats) const {
  families_->push_back(Family("folio_kv_slices_total",
                              "Slices of KV pages that attention has read; missed: from disk, or "
                              "from the host's memory.",
                              MetricType::Counter));
  Add(&families_->back(), static_cast<double>(stats.slice_hits), {{"result", "hit"}});
  Add(&families_->back(), static_cast<double>(stats.slice_misses), {{"result", "miss"}});
  if (stats.home == Tier::kHost) {
    families_->push_back(Family("folio_kv_host_read_bytes_total",
                                "Bytes of KV pages brought from the host's memory to the device.",
                                MetricType::Counter));
    Add(&families_->back(), static_cast<double>(stats.home_read_bytes), {});
    return;
  }
  families_->push_back(Family("folio_kv_disk_read_bytes_total", "Bytes of KV pages read from disk.",
                              MetricType::Counter));
  Add(&families_->back(), static_cast<double>(stats.home_read_bytes), {});
  families_->push_back(Family("folio_kv_disk_wait_seconds_total",
                              "Time that steps have waited for KV pages.", MetricType::Counter));
  Add(&families_->back(), stats.disk_wait_seconds, {});
}

void EngineGauges::CollectStore(const EngineStats& stats) const {
  std::vector<MetricFamily>* const families = families_;
  const auto add = [families](const char* name, const char* help, MetricType type, int64_t value,
                              Labels labels) {
    families->push_back(Family(name, help, type));
    Add(&families->back(), static_cast<double>(value), std::move(labels));
  };
  add("folio_stored_documents", "Documents on disk.", MetricType::Gauge, stats.stored_documents,
      {});
  add("folio_stored_bytes", "Bytes of stored documents, with what is deleted and quarantined.",
      MetricType::Gauge, stats.stored_bytes, {});
  add("folio_document_saves_total", "Documents that were written to disk, or could not be.",
      MetricType::Counter, stats.document_saves, {{"result", "ok"}});
  Add(&families_->back(), static_cast<double>(stats.document_save_failures),
      {{"result", "failed"}});
  add("folio_document_loads_total", "Stored documents that a question brought into memory.",
      MetricType::Counter, stats.document_loads, {});
  add("folio_stored_caches_used_total",
      "Stored caches that questions needed: read, or computed again because that was faster.",
      MetricType::Counter, stats.caches_read, {{"how", "read"}});
  Add(&families_->back(), static_cast<double>(stats.caches_prefilled), {{"how", "prefilled"}});
  add("folio_documents_quarantined_total", "Damaged documents and caches found on disk.",
      MetricType::Counter, stats.documents_quarantined, {});
}

void EngineGauges::CollectTokens(const EngineStats& stats) const {
  families_->push_back(
      Family("folio_prompt_tokens_total", "Prompt tokens by source.", MetricType::Counter));
  Add(&families_->back(), static_cast<double>(stats.prefill_tokens), {{"source", "computed"}});
  Add(&families_->back(), static_cast<double>(stats.cached_tokens), {{"source", "cached"}});
  const double now =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  families_->push_back(Family("folio_tokens_per_second",
                              "Mean of some seconds; rate() of the counters is exact.",
                              MetricType::Gauge));
  Add(&families_->back(), prefill_rate_.Sample(stats.prefill_tokens, now), {{"phase", "prefill"}});
  Add(&families_->back(), decode_rate_.Sample(stats.decode_tokens, now), {{"phase", "decode"}});
}

void EngineGauges::CollectDocuments(const DocumentCounts& counts) const {
  families_->push_back(Family("folio_documents", "Documents held.", MetricType::Gauge));
  for (size_t state = 0; state < counts.size(); ++state) {
    const char* name = DocumentStateName(static_cast<DocumentState>(state));
    Add(&families_->back(), counts[state], {{"state", name}});
  }
}

std::vector<MetricFamily> EngineGauges::Collect() const {
  MutexLock lock(&mu_);
  std::vector<MetricFamily> families;
  families_ = &families;
  Gauge("folio_process_resident_memory_bytes", "Resident memory of the process.",
        static_cast<double>(ResidentBytes()));
  families.push_back(Family("folio_log_lines_dropped_total",
                            "Log lines that were not written because nothing read them.",
                            MetricType::Counter));
  Add(&families.back(), static_cast<double>(DroppedLogLines()));
  const Engine* engine = engine_();
  CollectDocuments(engine == nullptr ? DocumentCounts{} : engine->CountDocuments());
  if (engine == nullptr) return families;
  const EngineStats stats = engine->Stats();
  Gauge("folio_num_requests_running", "Requests in the batch.", stats.running);
  Gauge("folio_num_requests_waiting", "Requests in the queue.", stats.queued());
  families.push_back(Family("folio_waiting_requests",
                            "Requests in the queue, by what they wait for.", MetricType::Gauge));
  const int for_turn =
      std::max(0, stats.queued() - stats.waiting_for_memory - stats.waiting_for_document);
  Add(&families.back(), for_turn, {{"reason", "turn"}});
  Add(&families.back(), stats.waiting_for_memory, {{"reason", "memory"}});
  Add(&families.back(), stats.waiting_for_document, {{"reason", "document"}});
  Gauge("folio_waiting_prefill_tokens", "Prompt tokens in the queue.",
        static_cast<double>(stats.waiting_prefill_tokens));
  Gauge("folio_engine_last_step_timestamp_seconds", "Unix time of the last engine step.",
        stats.last_step_unix_seconds);
  Gauge("folio_engine_busy", "1 while the engine has work.", stats.busy ? 1 : 0);
  families.push_back(Family("folio_engine_steps_total", "Engine steps.", MetricType::Counter));
  Add(&families.back(), static_cast<double>(stats.steps));
  families.push_back(HistogramOf("folio_engine_step_seconds", "How long steps of the engine took.",
                                 stats.step_times));
  families.push_back(Family("folio_engine_step_tokens_total",
                            "Tokens in engine steps: of prompts, or one of each running answer.",
                            MetricType::Counter));
  Add(&families.back(), static_cast<double>(stats.prefill_tokens), {{"kind", "prefill"}});
  Add(&families.back(), static_cast<double>(stats.decode_tokens), {{"kind", "decode"}});
  families.push_back(
      Family("folio_nonfinite_logits_total",
             "Requests that failed because the model gave logits that are not finite.",
             MetricType::Counter));
  Add(&families.back(), static_cast<double>(stats.nonfinite_logits));
  CollectMemory(*engine, stats);
  CollectTokens(stats);
  return families;
}

class EdgeGauges final : public prometheus::Collectable {
 public:
  explicit EdgeGauges(const Edge* edge) : edge_(edge) {}

  std::vector<MetricFamily> Collect() const override {
    std::vector<MetricFamily> families;
    families.push_back(Family("folio_connections", "Connections of clients.", MetricType::Gauge));
    Add(&families.back(), edge_->num_connections());
    families.push_back(Family("folio_connections_limit", "Connections that there is room for.",
                              MetricType::Gauge));
    Add(&families.back(), edge_->limits().max_connections);
    families.push_back(Family("folio_connections_closed_total",
                              "Connections that were refused or closed, by reason.",
                              MetricType::Counter));
    for (const auto& [reason, count] : edge_->closed()) {
      Add(&families.back(), static_cast<double>(count), {{"reason", reason}});
    }
    if (const int64_t expires = edge_->certificate_expires_unix_seconds(); expires > 0) {
      families.push_back(Family("folio_tls_certificate_expires_timestamp_seconds",
                                "When the certificate in use ends, in Unix time.",
                                MetricType::Gauge));
      Add(&families.back(), static_cast<double>(expires));
    }
    return families;
  }

 private:
  const Edge* const edge_;
};

class SpanCounters final : public prometheus::Collectable {
 public:
  explicit SpanCounters(const SpanExporter* spans) : spans_(spans) {}

  std::vector<MetricFamily> Collect() const override {
    if (spans_ == nullptr) return {};
    MetricFamily family =
        Family("folio_spans_total", "Spans that the collector took, or that were dropped.",
               MetricType::Counter);
    Add(&family, static_cast<double>(spans_->num_exported()), {{"result", "exported"}});
    Add(&family, static_cast<double>(spans_->num_dropped()), {{"result", "dropped"}});
    return {family};
  }

 private:
  const SpanExporter* const spans_;
};

class CallCounters final : public prometheus::Collectable {
 public:
  explicit CallCounters(ServiceContext* context) : context_(context) {}

  std::vector<MetricFamily> Collect() const override {
    const Engine* const engine = context_->engine();
    std::vector<MetricFamily> families = context_->tenants.Collect(
        engine == nullptr ? std::vector<TenantUse>() : engine->TenantUses());
    families.push_back(Family("folio_log_calls_left_out_total",
                              "Finished calls that are not in the log, for their client makes too "
                              "many of them.",
                              MetricType::Counter));
    Add(&families.back(), static_cast<double>(context_->log.num_left_out()));
    if (!context_->audit.is_open()) return families;
    families.push_back(Family("folio_audit_lines_dropped_total",
                              "Lines of the audit log that could not be written.",
                              MetricType::Counter));
    Add(&families.back(), static_cast<double>(context_->audit.dropped()));
    return families;
  }

 private:
  ServiceContext* const context_;
};

}  // namespace

std::shared_ptr<prometheus::Collectable> Metrics::CallCollectable(ServiceContext* context) {
  return std::make_shared<CallCounters>(context);
}

std::shared_ptr<prometheus::Collectable> Metrics::SpanCollectable(const SpanExporter* spans) {
  return std::make_shared<SpanCounters>(spans);
}

std::shared_ptr<prometheus::Collectable> Metrics::EdgeCollectable(const Edge* edge) {
  return std::make_shared<EdgeGauges>(edge);
}

std::shared_ptr<prometheus::Collectable> Metrics::EngineCollectable(
    std::function<Engine*()> engine) {
  return std::make_shared<EngineGauges>(std::move(engine));
}

}  // namespace folio::server
