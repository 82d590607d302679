#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "server/version.h"

namespace folio::server {
namespace {

using Buckets = std::vector<double>;
using Labels = std::map<std::string, std::string>;

const Buckets kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,  .75, 1,
                             2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560};
const Buckets kInterToken = {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .06,
                             .08,  .1,   .2,   .4,   .6,  .8,   1,   2,    4,   6,   8};
const Buckets kPerOutputToken = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5,
                                 .75, 1,    2.5, 5,    7.5, 10, 20, 40, 80};
const Buckets kRequest = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,  15,
                          20, 30, 40, 50, 60,  120, 240, 480, 960, 1920, 7680};

Buckets TokenBuckets() {
  Buckets buckets;
  for (double decade = 1; decade <= 1e6; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) buckets.push_back(decade * step);
  }
  return buckets;
}

std::string RejectReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted: return "capacity";
    case absl::StatusCode::kUnavailable: return "not_serving";
    case absl::StatusCode::kInvalidArgument: return "invalid";
    case absl::StatusCode::kNotFound: return "not_found";
    case absl::StatusCode::kFailedPrecondition: return "precondition";
    default: return "other";
  }
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kQueued: return "queue";
    case Phase::kPrefill: return "prefill";
    case Phase::kDecode: return "decode";
  }
  return "?";
}

}  // namespace

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  SetInfo("folio_build_info", "Always 1; the version is a label.", {{"version", kVersion}}, 1);
}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const Labels& labels, const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels,
                                                                                     buckets);
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

void Metrics::OnFirstToken(const std::string& strategy, bool has_document, double seconds) {
  Histogram("folio_time_to_first_token_seconds", "From arrival to the first token.",
            {{"strategy", strategy}, {"document", has_document ? "yes" : "none"}}, kFirstToken)
      .Observe(seconds);
}

void Metrics::OnTokens(const std::string& strategy, int count, double seconds_since_last) {
  Counter("folio_generation_tokens_total", "Generated tokens.", {{"strategy", strategy}})
      .Increment(count);
  if (seconds_since_last < 0) return;
  Histogram("folio_inter_token_latency_seconds", "Between two tokens of one answer.",
            {{"strategy", strategy}}, kInterToken)
      .Observe(seconds_since_last);
}

void Metrics::OnCompleted(const CompletedEvent& completed, double e2e_seconds) {
  const Timings& timings = completed.timings;
  const Usage& usage = completed.usage;
  Counter("folio_request_success_total", "Completed requests.",
          {{"finished_reason", completed.reason == FinishReason::kStop ? "stop" : "length"}})
      .Increment();
  Histogram("folio_e2e_request_latency_seconds", "From arrival to the last token.", {}, kRequest)
      .Observe(e2e_seconds);
  Histogram("folio_request_queue_time_seconds", "Waiting for admission.", {}, kRequest)
      .Observe(timings.queue_seconds);
  Histogram("folio_request_prefill_time_seconds", "From admission to the first token.", {}, kRequest)
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

void Metrics::OnFailed(const absl::Status& status, Phase phase) {
  const bool client = status.code() == absl::StatusCode::kCancelled ||
                      status.code() == absl::StatusCode::kDeadlineExceeded;
  if (client) {
    Counter("folio_request_cancellations_total", "Requests that the client gave up.",
            {{"phase", PhaseName(phase)}})
        .Increment();
  } else {
    OnRejected(status);
  }
}

void Metrics::OnRejected(const absl::Status& status) {
  Counter("folio_requests_rejected_total", "Requests refused, by reason.",
          {{"reason", RejectReason(status.code())}})
      .Increment();
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
}

}  // namespace folio::server
