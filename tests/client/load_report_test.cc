#include <gtest/gtest.h>

#include <string>

#include "loadtest/metrics.h"
#include "loadtest/report.h"

namespace folio::loadtest {
namespace {

// A call scheduled at 1 s, sent 10 ms late, with tokens at 1.2, 1.3 and 1.5 s.
CallRecord GoodCall() {
  CallRecord call;
  call.spec.strategy = "full";
  call.scheduled_seconds = 1.0;
  call.sent_seconds = 1.01;
  call.first_event_seconds = 1.05;
  call.accepted_seconds = 1.05;
  call.token_events = {{1.2, 1}, {1.3, 1}, {1.5, 1}};
  call.token_ids = {5, 6, 7};
  call.end_seconds = 1.6;
  call.completed.emplace();
  call.completed->mutable_usage()->set_prompt_tokens(10);
  call.completed->mutable_usage()->set_cached_tokens(4);
  call.completed->mutable_timings()->set_queue_seconds(0.02);
  return call;
}

const Summary* Find(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, summary] : metrics.latencies_ms) {
    if (key == name) return &summary;
  }
  return nullptr;
}

TEST(Metrics, LatenciesCountFromTheScheduledTime) {
  const CallRecord call = GoodCall();
  const Metrics metrics = ComputeMetrics({&call}, {});
  EXPECT_NEAR(Find(metrics, "ttft")->mean, 200, 1e-6);
  EXPECT_NEAR(Find(metrics, "e2el")->mean, 600, 1e-6);
  // (600 - 200) / 2
  EXPECT_NEAR(Find(metrics, "tpot")->mean, 200, 1e-6);
  // Gaps of 100 and 200 ms.
  EXPECT_EQ(Find(metrics, "itl")->count, 2);
  EXPECT_NEAR(Find(metrics, "itl")->mean, 150, 1e-6);
  EXPECT_NEAR(Find(metrics, "send_lag")->mean, 10, 1e-6);
  EXPECT_NEAR(Find(metrics, "ttfe")->mean, 50, 1e-6);
  EXPECT_NEAR(Find(metrics, "queue")->mean, 20, 1e-6);
  EXPECT_NEAR(metrics.duration_seconds, 0.6, 1e-6);
}

TEST(Metrics, GoodputCountsCallsThatKeepAllLimits) {
  const CallRecord call = GoodCall();
  Goodput goodput;
  EXPECT_FALSE(ComputeMetrics({&call}, goodput).num_good.has_value());
  goodput.ttft_ms = 250;
  goodput.e2el_ms = 700;
  EXPECT_EQ(ComputeMetrics({&call}, goodput).num_good, 1);
  goodput.e2el_ms = 500;
  EXPECT_EQ(ComputeMetrics({&call}, goodput).num_good, 0);
}

TEST(Metrics, OutcomesAreCountedApart) {
  const CallRecord good = GoodCall();
  CallRecord cancelled = GoodCall();
  cancelled.cancelled = true;
  cancelled.status = absl::CancelledError("");
  CallRecord refused = GoodCall();
  refused.token_ids.clear();
  refused.token_events.clear();
  refused.status = absl::ResourceExhaustedError("full");
  const Metrics metrics = ComputeMetrics({&good, &cancelled, &refused}, {});
  EXPECT_EQ(metrics.completed, 1);
  EXPECT_EQ(metrics.cancelled, 1);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.wasted_tokens, 3);
  EXPECT_EQ(metrics.output_tokens, 3);
  EXPECT_EQ(metrics.max_concurrent, 3);
  // All in the second that begins at 1 s.
  EXPECT_EQ(metrics.max_output_tokens_per_s, 6);
  EXPECT_EQ(metrics.status_codes.at("OK"), 1);
  EXPECT_EQ(metrics.rejects.at("RESOURCE_EXHAUSTED").count, 1);
}

TEST(LoadReport, JsonHasTheUsualKeys) {
  RunResult result;
  result.date = "2024-01-01T00:00:00+00:00";
  result.records = {GoodCall(), GoodCall()};
  Options options;
  options.rate = 5;
  options.goodput.ttft_ms = 250;
  const nlohmann::ordered_json json = ResultToJson(result, options);
  for (const char* key : {"date",
                          "backend",
                          "model",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "max_silence_ms",
                          "status_codes",
                          "cached_tokens",
                          "computed_tokens",
                          "wasted_tokens",
                          "invariants",
                          "environment"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const std::string metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string statistic : {"mean", "median", "std", "p50", "p90", "p95", "p99"}) {
      EXPECT_TRUE(json.contains(statistic + "_" + metric + "_ms")) << statistic << metric;
    }
  }
  EXPECT_EQ(json["computed_tokens"], 12);
  EXPECT_EQ(json["invariants"]["ok"], true);
}

TEST(LoadReport, WhatWasNotMeasuredHasNoKey) {
  RunResult result;
  CallRecord refused = GoodCall();
  refused.status = absl::UnavailableError("loading");
  refused.completed.reset();
  refused.token_events.clear();
  result.records = {refused};
  const nlohmann::ordered_json json = ResultToJson(result, Options());
  for (const char* key : {"mean_ttft_ms", "mean_queue_ms", "request_goodput", "request_rate",
                          "probes", "greedy", "cached_tokens", "server_idle_after_ms"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["max_concurrency"], 4);
  EXPECT_EQ(json["rejects"][0]["reason"], "UNAVAILABLE");
}

TEST(LoadReport, WarmupAndProbesAreApart) {
  RunResult result;
  CallRecord warmup = GoodCall();
  warmup.warmup = true;
  CallRecord probe = GoodCall();
  probe.spec.probe = true;
  result.records = {GoodCall(), warmup, probe};
  Options options;
  options.probe_rate = 1;
  const nlohmann::ordered_json json = ResultToJson(result, options);
  EXPECT_EQ(json["num_prompts"], 1);
  EXPECT_EQ(json["probes"]["completed"], 1);
}

TEST(LoadReport, ViolationsOfAllCallsAreListed) {
  RunResult result;
  CallRecord warmup = GoodCall();
  warmup.warmup = true;
  warmup.violations = {"too silent"};
  result.records = {warmup};
  result.greedy = GreedyVerification{.num_checked = 1, .mismatches = {"load-1-0: differs"}};
  const nlohmann::ordered_json json = ResultToJson(result, Options());
  EXPECT_EQ(json["invariants"]["ok"], false);
  EXPECT_EQ(json["invariants"]["violations"][0], "request 0 (full): too silent");
  EXPECT_EQ(json["greedy"]["mismatches"], 1);
  EXPECT_NE(FormatResult(result, Options()).find("2 violations"), std::string::npos);
}

}  // namespace
}  // namespace folio::loadtest
