#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <mutex>
#include <utility>

#include "engine/base/memory_info.h"
#include "server/metrics.h"

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

void Add(MetricFamily* family, double value, Labels labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  metric.counter.value = value;
  family->metric.push_back(std::move(metric));
}

// Reads the engine when scraped.
class EngineGauges final : public prometheus::Collectable {
 public:
  EngineGauges(std::function<Engine*()> engine, std::function<int()> num_documents)
      : engine_(std::move(engine)), num_documents_(std::move(num_documents)) {}

  std::vector<MetricFamily> Collect() const override;

 private:
  void Gauge(const std::string& name, const std::string& help, double value) const {
    families_->push_back(Family(name, help, MetricType::Gauge));
    Add(&families_->back(), value);
  }
  void CollectMemory(const Engine& engine, const EngineStats& stats) const;
  void CollectTokens(const EngineStats& stats) const;

  const std::function<Engine*()> engine_;
  const std::function<int()> num_documents_;

  // Scrapes run one at a time.
  mutable std::mutex mu_;
  mutable std::vector<MetricFamily>* families_ = nullptr;
  mutable EngineStats last_;
  mutable double last_seconds_ = 0;
};

void EngineGauges::CollectMemory(const Engine& engine, const EngineStats& stats) const {
  const double used = static_cast<double>(stats.kv_used_bytes + stats.summary_used_bytes);
  const double reserved = static_cast<double>(stats.kv_reserved_bytes);
  const double capacity = static_cast<double>(stats.kv_capacity_bytes);
  families_->push_back(
      Family("folio_kv_cache_usage_ratio", "Reserved share of the tier.", MetricType::Gauge));
  Add(&families_->back(), capacity > 0 ? reserved / capacity : 0, {{"tier", "device"}});
  families_->push_back(Family("folio_kv_cache_bytes", "Bytes of KV cache.", MetricType::Gauge));
  Add(&families_->back(), used, {{"tier", "device"}, {"state", "used"}});
  Add(&families_->back(), reserved, {{"tier", "device"}, {"state", "reserved"}});
  families_->push_back(
      Family("folio_kv_cache_capacity_bytes", "KV cache budget.", MetricType::Gauge));
  Add(&families_->back(), capacity, {{"tier", "device"}});
  families_->push_back(Family("folio_memory_bytes", "Memory by component.", MetricType::Gauge));
  Add(&families_->back(), static_cast<double>(engine.info().weight_bytes),
      {{"component", "weights"}});
  Add(&families_->back(), static_cast<double>(stats.kv_used_bytes), {{"component", "kv"}});
  Add(&families_->back(), static_cast<double>(stats.summary_used_bytes),
      {{"component", "chunk_summaries"}});
}

void EngineGauges::CollectTokens(const EngineStats& stats) const {
  families_->push_back(
      Family("folio_prompt_tokens_total", "Prompt tokens by source.", MetricType::Counter));
  Add(&families_->back(), static_cast<double>(stats.prefill_tokens), {{"source", "computed"}});
  Add(&families_->back(), static_cast<double>(stats.cached_tokens), {{"source", "cached"}});
  const double now = stats.last_step_unix_seconds;
  const double seconds = now - last_seconds_;
  families_->push_back(Family("folio_tokens_per_second", "Mean since the last scrape; rate() of the "
                              "counters is exact.", MetricType::Gauge));
  const auto rate = [&](int64_t value, int64_t before) {
    return last_seconds_ > 0 && seconds > 0 ? static_cast<double>(value - before) / seconds : 0.0;
  };
  Add(&families_->back(), rate(stats.prefill_tokens, last_.prefill_tokens), {{"phase", "prefill"}});
  Add(&families_->back(), rate(stats.decode_tokens, last_.decode_tokens), {{"phase", "decode"}});
  last_ = stats;
  last_seconds_ = now;
}

std::vector<MetricFamily> EngineGauges::Collect() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<MetricFamily> families;
  families_ = &families;
  Gauge("folio_process_resident_memory_bytes", "Resident memory of the process.",
        static_cast<double>(ResidentBytes()));
  Gauge("folio_documents", "Documents held.", num_documents_());
  const Engine* engine = engine_();
  if (engine == nullptr) return families;
  const EngineStats stats = engine->Stats();
  Gauge("folio_num_requests_running", "Requests in the batch.", stats.running);
  Gauge("folio_num_requests_waiting", "Requests in the queue.", stats.waiting);
  Gauge("folio_waiting_prefill_tokens", "Prompt tokens in the queue.",
        static_cast<double>(stats.waiting_prefill_tokens));
  Gauge("folio_engine_last_step_timestamp_seconds", "Unix time of the last engine step.",
        stats.last_step_unix_seconds);
  Gauge("folio_engine_busy", "1 while the engine has work.", stats.busy ? 1 : 0);
  families.push_back(Family("folio_engine_steps_total", "Engine steps.", MetricType::Counter));
  Add(&families.back(), static_cast<double>(stats.steps));
  CollectMemory(*engine, stats);
  CollectTokens(stats);
  return families;
}

}  // namespace

std::shared_ptr<prometheus::Collectable> Metrics::EngineCollectable(
    std::function<Engine*()> engine, std::function<int()> num_documents) {
  return std::make_shared<EngineGauges>(std::move(engine), std::move(num_documents));
}

}  // namespace folio::server
