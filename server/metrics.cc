#include "server/metrics.h"

#include <prometheus/gauge.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/status_mapping.h"
#include "server/version.h"

namespace folio::server {
namespace {

using Buckets = std::vector<double>;
using Labels = std::map<std::string, std::string>;

constexpr char kRejected[] = "folio_requests_rejected_total";
constexpr char kRejectedHelp[] = "Requests that the server refused for lack of room or readiness.";
constexpr char kFinished[] = "folio_request_success_total";
constexpr char kFinishedHelp[] = "Requests that ran, by how they ended.";
constexpr char kWaits[] = "folio_request_wait_seconds_total";
constexpr char kWaitsHelp[] =
    "Time that completed requests have waited for admission, by what they waited for.";
constexpr char kFaults[] = "folio_server_faults_total";
constexpr char kFaultsHelp[] = "RPCs that ended with a status that is no client's fault.";
constexpr char kCancelled[] = "folio_request_cancellations_total";
constexpr char kCancelledHelp[] = "Requests that the client gave up or whose deadline passed.";

const Buckets kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                             1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kInterToken = {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .06,
                             .08,  .1,   .2,   .4,   .6,  .8,   1,   2,    4,   6,   8};
const Buckets kPerOutputToken = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                 .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequest = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

Buckets TokenBuckets() {
  Buckets buckets;
  for (double decade = 1; decade <= 1e6; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) buckets.push_back(decade * step);
  }
  return buckets;
}

// What ended a request early.
const char* EndReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return "abort";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    default:
      return "error";
  }
}

}  // namespace

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queue";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
  }
  return "?";
}

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  SetInfo("folio_build_info", "Always 1; the version is a label.", {{"version", kVersion}}, 1);
  CreateKnownSeries();
}

// A counter that begins at 0 shows its first event as a rate.
void Metrics::CreateKnownSeries() {
  for (const char* reason : {"queue", "kv", "capacity", "loading", "draining"}) {
    Counter(kRejected, kRejectedHelp, {{"reason", reason}});
  }
  for (const char* reason : {"stop", "length", "abort", "deadline", "error"}) {
    Counter(kFinished, kFinishedHelp, {{"finished_reason", reason}});
  }
  for (const char* reason : {"turn", "memory", "document"}) {
    Counter(kWaits, kWaitsHelp, {{"reason", reason}});
  }
  for (const char* code : kFaultCodes) Counter(kFaults, kFaultsHelp, {{"grpc_code", code}});
  for (const char* phase : {"tokenise", "queue", "prefill", "decode"}) {
    Counter(kCancelled, kCancelledHelp, {{"phase", phase}});
  }
}

const StrategyMetrics* Metrics::ForStrategy(const std::string& strategy) {
  MutexLock lock(&mu_);
  const auto [it, is_new] = strategies_.try_emplace(strategy);
  StrategyMetrics& metrics = it->second;
  if (!is_new) return &metrics;
  metrics.generated_tokens =
      &Counter("folio_generation_tokens_total", "Generated tokens.", {{"strategy", strategy}});
  metrics.inter_token_seconds =
      &Histogram("folio_inter_token_latency_seconds", "Between two tokens of one answer.",
                 {{"strategy", strategy}}, kInterToken);
  size_t use = 0;
  for (const char* document : {"none", "hit", "miss"}) {
    metrics.first_token_seconds[use++] =
        &Histogram("folio_time_to_first_token_seconds", "From arrival to the first token.",
                   {{"strategy", strategy}, {"document", document}}, kFirstToken);
  }
  return &metrics;
}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const Labels& labels, const Buckets& buckets) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(*registry_)
      .Add(labels, buckets);
}

void Metrics::SetInfo(const std::string& name, const std::string& help, const Labels& labels,
                      double value) {
  prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels).Set(value);
}

void Metrics::OnModelLoaded(const EngineInfo& info, double load_seconds) {
  SetInfo("folio_model_info", "Always 1; the model is in the labels.",
          {{"model", info.model_name},
           {"architecture", info.architecture},
           {"weight_dtype", info.weight_dtype},
           {"synthetic", info.synthetic ? "true" : "false"}},
          1);
  SetInfo("folio_startup_seconds", "Seconds that a phase of the start took.",
          {{"phase", "load_model"}}, load_seconds);
}

void Metrics::OnAccepted(const std::string& strategy) {
  Counter("folio_strategy_selected_total", "Requests by attention strategy.",
          {{"strategy", strategy}})
      .Increment();
}

void Metrics::OnCompleted(const CompletedEvent& completed, double e2e_seconds) {
  const Timings& timings = completed.timings;
  const Usage& usage = completed.usage;
  const char* reason = completed.reason == FinishReason::kStop ? "stop" : "length";
  Counter(kFinished, kFinishedHelp, {{"finished_reason", reason}}).Increment();
  Histogram("folio_e2e_request_latency_seconds", "From arrival to the last token.", {}, kRequest)
      .Observe(e2e_seconds);
  Histogram("folio_request_queue_time_seconds", "Waiting for admission.", {}, kFirstToken)
      .Observe(timings.queue_seconds);
  const Scheduling& waits = completed.scheduling;
  Histogram("folio_request_scheduling_delay_seconds",
            "Waiting for its turn, while there was memory for it and its document was there.", {},
            kFirstToken)
      .Observe(waits.turn_seconds);
  for (const auto& [reason, seconds] :
       {std::pair("turn", waits.turn_seconds), std::pair("memory", waits.memory_seconds),
        std::pair("document", waits.document_seconds)}) {
    Counter(kWaits, kWaitsHelp, {{"reason", reason}}).Increment(seconds);
  }
  Histogram("folio_request_prefill_time_seconds", "From admission to the first token.", {},
            kRequest)
      .Observe(timings.prefill_seconds);
  Histogram("folio_request_decode_time_seconds", "From the first to the last token.", {}, kRequest)
      .Observe(timings.decode_seconds);
  Histogram("folio_request_prompt_tokens", "Prompt length.", {}, TokenBuckets())
      .Observe(static_cast<double>(usage.prompt_tokens));
  Histogram("folio_request_generation_tokens", "Answer length.", {}, TokenBuckets())
      .Observe(static_cast<double>(usage.completion_tokens));
  if (usage.completion_tokens > 1) {
    Histogram("folio_request_time_per_output_token_seconds", "Mean over one answer.", {},
              kPerOutputToken)
        .Observe(timings.decode_seconds / static_cast<double>(usage.completion_tokens - 1));
  }
}

void Metrics::OnFailed(const absl::Status& status, const std::string& phase) {
  Counter(kFinished, kFinishedHelp, {{"finished_reason", EndReason(status.code())}}).Increment();
  if (status.code() == absl::StatusCode::kResourceExhausted) OnRejected("kv");
  if (status.code() == absl::StatusCode::kCancelled ||
      status.code() == absl::StatusCode::kDeadlineExceeded) {
    Counter(kCancelled, kCancelledHelp, {{"phase", phase}}).Increment();
  }
}

void Metrics::OnRejected(const std::string& reason) {
  Counter(kRejected, kRejectedHelp, {{"reason", reason}}).Increment();
}

void Metrics::OnDocumentReady(double seconds) {
  Histogram("folio_document_ingest_seconds", "From the header of an upload to a ready document.",
            {}, kRequest)
      .Observe(seconds);
}

void Metrics::OnRpc(const std::string& method, const std::string& code) {
  Counter("folio_grpc_server_handled_total", "Finished RPCs.",
          {{"grpc_method", method}, {"grpc_code", code}})
      .Increment();
  if (IsFault(code)) Counter(kFaults, kFaultsHelp, {{"grpc_code", code}}).Increment();
}

}  // namespace folio::server
