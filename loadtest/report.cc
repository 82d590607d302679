#include "loadtest/report.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace folio::loadtest {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPrintedViolations = 20;

// The metrics of the measured calls that `wanted` picks.
Metrics MetricsOf(const RunResult& result, const Options& options,
                  const std::function<bool(const CallRecord&)>& wanted) {
  std::vector<const CallRecord*> picked;
  for (const CallRecord& record : result.records) {
    if (!record.warmup && wanted(record)) picked.push_back(&record);
  }
  return ComputeMetrics(picked, options.goodput);
}

Metrics LoadMetrics(const RunResult& result, const Options& options) {
  return MetricsOf(result, options, [](const CallRecord& call) { return !call.spec.probe; });
}

Metrics ProbeMetrics(const RunResult& result, const Options& options) {
  return MetricsOf(result, options, [](const CallRecord& call) { return call.spec.probe; });
}

void PutLatencies(const Metrics& metrics, Json* json) {
  for (const auto& [name, summary] : metrics.latencies_ms) {
    const std::vector<std::pair<const char*, double>> values = {
        {"mean", summary.mean}, {"median", summary.median}, {"std", summary.std},
        {"p50", summary.p50},   {"p90", summary.p90},       {"p95", summary.p95},
        {"p99", summary.p99},   {"max", summary.max}};
    for (const auto& [statistic, value] : values) {
      (*json)[absl::StrCat(statistic, "_", name, "_ms")] = value;
    }
  }
}

void PutThroughput(const Metrics& metrics, Json* json) {
  if (metrics.duration_seconds <= 0) return;
  const double seconds = metrics.duration_seconds;
  (*json)["request_throughput"] = static_cast<double>(metrics.completed) / seconds;
  if (metrics.num_good) {
    (*json)["request_goodput"] = static_cast<double>(*metrics.num_good) / seconds;
  }
  (*json)["output_throughput"] = static_cast<double>(metrics.output_tokens) / seconds;
  (*json)["total_token_throughput"] =
      static_cast<double>(metrics.input_tokens + metrics.output_tokens) / seconds;
  (*json)["max_output_tokens_per_s"] = metrics.max_output_tokens_per_s;
  (*json)["max_concurrent_requests"] = metrics.max_concurrent;
}

void PutMetrics(const Metrics& metrics, Json* json) {
  (*json)["duration"] = metrics.duration_seconds;
  (*json)["completed"] = metrics.completed;
  (*json)["failed"] = metrics.failed;
  (*json)["cancelled"] = metrics.cancelled;
  (*json)["total_input_tokens"] = metrics.input_tokens;
  (*json)["total_output_tokens"] = metrics.output_tokens;
  PutThroughput(metrics, json);
  PutLatencies(metrics, json);
  (*json)["max_silence_ms"] = metrics.max_silence_ms;
  (*json)["status_codes"] = metrics.status_codes;
  Json rejects = Json::array();
  for (const auto& [reason, reject] : metrics.rejects) {
    Json entry = {
        {"reason", reason}, {"count", reject.count}, {"with_retry_delay", reject.num_with_delay}};
    if (reject.num_with_delay > 0) {
      entry["retry_delay_mean"] = reject.mean_retry_delay_seconds;
    }
    rejects.push_back(std::move(entry));
  }
  if (!rejects.empty()) (*json)["rejects"] = std::move(rejects);
  if (metrics.completed > 0) {
    (*json)["cached_tokens"] = metrics.cached_tokens;
    (*json)["computed_tokens"] = metrics.input_tokens - metrics.cached_tokens;
    (*json)["max_request_device_kv_bytes"] = metrics.max_device_kv_bytes;
  }
  (*json)["wasted_tokens"] = metrics.wasted_tokens;
}

template <typename Value>
Json WeightsToJson(const std::vector<std::pair<Value, double>>& choices) {
  Json json = Json::array();
  for (const auto& [value, weight] : choices) json.push_back(Json::array({value, weight}));
  return json;
}

// What is needed to make the same run again.
Json Environment(const RunResult& result, const Options& options) {
  Json json = {{"server", options.server},
               {"server_version", result.server.version()},
               {"server_backend", result.server.backend()},
               {"server_threads", result.server.num_threads()},
               {"kv_dtype", result.server.kv_dtype()},
               {"seed", options.seed},
               {"prompt_tokens", WeightsToJson(options.prompt_tokens)},
               {"output_tokens", WeightsToJson(options.output_tokens)},
               {"ignore_eos", options.ignore_eos},
               {"sampled_fraction", options.sampled_fraction},
               {"cancel_fraction", options.cancel_fraction},
               {"warmup", options.warmup_seconds},
               {"heartbeat_interval_ms", options.heartbeat_interval_ms},
               {"silence_slack_ms", options.silence_slack_ms}};
  if (options.cancel_fraction > 0) json["cancel_delay"] = options.max_cancel_delay_seconds;
  if (options.probe_rate > 0) json["probe_rate"] = options.probe_rate;
  return json;
}

void AppendLatencyRow(const std::string& name, const Summary& s, std::string* table) {
  absl::StrAppendFormat(table, "  %-16s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", name,
                        s.mean, s.median, s.std, s.p90, s.p95, s.p99, s.max);
}

void AppendLatencies(const std::string& prefix, const Metrics& metrics, std::string* table) {
  for (const auto& [name, summary] : metrics.latencies_ms) {
    AppendLatencyRow(absl::StrCat(prefix, name), summary, table);
  }
}

void AppendTotals(const Metrics& metrics, std::string* table) {
  absl::StrAppendFormat(
      table, "requests %d: %d completed, %d cancelled, %d failed, at most %d at once, %.1f s\n",
      metrics.num_prompts, metrics.completed, metrics.cancelled, metrics.failed,
      metrics.max_concurrent, metrics.duration_seconds);
  absl::StrAppendFormat(table, "tokens   %d in (%d cached), %d out, %d wasted\n",
                        metrics.input_tokens, metrics.cached_tokens, metrics.output_tokens,
                        metrics.wasted_tokens);
  if (metrics.duration_seconds > 0) {
    const double seconds = metrics.duration_seconds;
    absl::StrAppendFormat(table, "speed    %.2f requests/s, %.1f tokens/s out (peak %d)",
                          static_cast<double>(metrics.completed) / seconds,
                          static_cast<double>(metrics.output_tokens) / seconds,
                          metrics.max_output_tokens_per_s);
    if (metrics.num_good) {
      absl::StrAppendFormat(table, ", goodput %.2f requests/s",
                            static_cast<double>(*metrics.num_good) / seconds);
    }
    absl::StrAppend(table, "\n");
  }
  absl::StrAppend(table, "status  ");
  for (const auto& [code, count] : metrics.status_codes) {
    absl::StrAppend(table, " ", code, " ", count);
  }
  absl::StrAppendFormat(table, "; longest silence %.0f ms\n", metrics.max_silence_ms);
}

}  // namespace

std::vector<std::string> AllViolations(const RunResult& result) {
  std::vector<std::string> all = result.violations;
  for (const CallRecord& record : result.records) {
    for (const std::string& violation : record.violations) {
      all.push_back(absl::StrCat(record.spec.probe ? "probe " : "request ", record.spec.index, " (",
                                 record.spec.strategy, "): ", violation));
    }
  }
  if (result.greedy) {
    for (const std::string& mismatch : result.greedy->mismatches) {
      all.push_back(absl::StrCat("greedy answer differs: ", mismatch));
    }
  }
  return all;
}

nlohmann::ordered_json ResultToJson(const RunResult& result, const Options& options) {
  const Metrics metrics = LoadMetrics(result, options);
  Json json = {
      {"date", result.date}, {"backend", "folio"}, {"model", result.server.model().name()}};
  json["num_prompts"] = metrics.num_prompts;
  if (options.open_loop()) {
    json["request_rate"] = *options.rate;
    json["burstiness"] = options.burstiness;
  } else {
    json["max_concurrency"] = options.concurrency;
  }
  PutMetrics(metrics, &json);
  json["strategy"] = WeightsToJson(options.strategies);
  if (options.strategies.size() > 1) {
    for (const auto& choice : options.strategies) {
      const std::string& name = choice.first;
      PutMetrics(MetricsOf(result, options,
                           [&name](const CallRecord& call) {
                             return !call.spec.probe && call.spec.strategy == name;
                           }),
                 &json["by_strategy"][name]);
    }
  }
  if (options.probe_rate > 0) PutMetrics(ProbeMetrics(result, options), &json["probes"]);
  const std::vector<std::string> violations = AllViolations(result);
  json["invariants"] = {{"ok", violations.empty()}, {"violations", violations}};
  if (result.server_idle_after_ms) json["server_idle_after_ms"] = *result.server_idle_after_ms;
  if (result.greedy) {
    json["greedy"] = {{"checked", result.greedy->num_checked},
                      {"mismatches", result.greedy->mismatches.size()}};
  }
  json["environment"] = Environment(result, options);
  return json;
}

std::string FormatJson(const RunResult& result, const Options& options) {
  return ResultToJson(result, options)
      .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string FormatResult(const RunResult& result, const Options& options) {
  const Metrics metrics = LoadMetrics(result, options);
  std::string table;
  AppendTotals(metrics, &table);
  absl::StrAppendFormat(&table, "  %-16s %10s %10s %10s %10s %10s %10s %10s\n", "ms", "mean",
                        "median", "std", "p90", "p95", "p99", "max");
  AppendLatencies("", metrics, &table);
  if (options.probe_rate > 0) {
    AppendLatencies("probe ", ProbeMetrics(result, options), &table);
  }
  if (result.greedy) {
    absl::StrAppend(&table, "greedy   ", result.greedy->num_checked, " answers repeated alone, ",
                    result.greedy->mismatches.size(), " differ\n");
  }
  const std::vector<std::string> violations = AllViolations(result);
  absl::StrAppend(&table, "checks   ",
                  violations.empty() ? "ok" : absl::StrCat(violations.size(), " violations"), "\n");
  for (size_t i = 0; i < violations.size() && i < kMaxPrintedViolations; ++i) {
    absl::StrAppend(&table, "  ", violations[i], "\n");
  }
  if (violations.size() > kMaxPrintedViolations) absl::StrAppend(&table, "  ...\n");
  return table;
}

}  // namespace folio::loadtest
