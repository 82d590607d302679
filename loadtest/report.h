// The result of a run, for programs and for people. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "folio/v1/control.pb.h"
#include "loadtest/call_record.h"
#include "loadtest/greedy_verifier.h"
#include "loadtest/metrics.h"
#include "loadtest/options.h"

namespace folio::loadtest {

// Everything that a run found out.
struct RunResult {
  // RFC 3339, UTC.
  std::string date;
  v1::ServerInfo server;
  std::vector<CallRecord> records;
  // How long after the last call the server still had requests; unset if it was not idle before the
  // run either, so that nothing can be said.
  std::optional<double> server_idle_after_ms;
  std::optional<GreedyVerification> greedy;
  // Broken promises that belong to no single call.
  std::vector<std::string> violations;
};

// All violations: of the run, of the calls (warm-up and probes included) and of the greedy
// repetition.
std::vector<std::string> AllViolations(const RunResult& result);

// The keys of the usual serving benchmarks: date, backend, model, num_prompts, request_rate and
// burstiness (open loop) or max_concurrency (closed loop), duration, completed, failed, cancelled,
// total_input_tokens, total_output_tokens, request_throughput, request_goodput, output_throughput,
// total_token_throughput, max_output_tokens_per_s, max_concurrent_requests,
// {mean,median,std,p50,p90,p95,p99,max}_{ttft,tpot,itl,e2el,ttfe,accept,queue,prefill,send_lag}_ms,
// max_silence_ms, status_codes, rejects, cached_tokens, computed_tokens, wasted_tokens,
// max_request_device_kv_bytes, by_strategy, probes, invariants, greedy, environment.
// A key is there only if it was measured.
nlohmann::ordered_json ResultToJson(const RunResult& result, const Options& options);

// The same as text; bytes that are no UTF-8 are replaced.
std::string FormatJson(const RunResult& result, const Options& options);

// The same as a table, with the violations at the end.
std::string FormatResult(const RunResult& result, const Options& options);

}  // namespace folio::loadtest
