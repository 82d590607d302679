// From records to the numbers of a report. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/call_record.h"
#include "loadtest/options.h"
#include "loadtest/statistics.h"

namespace folio::loadtest {

// Calls that the server refused for one reason.
struct Rejects {
  uint64_t count = 0;
  // Mean of the delays that the server asked for, over those refusals that named one.
  uint64_t num_with_delay = 0;
  double mean_retry_delay_seconds = 0;
};

struct Metrics {
  uint64_t num_prompts = 0;
  uint64_t completed = 0;
  uint64_t cancelled = 0;
  uint64_t failed = 0;
  // From the first scheduled call to the end of the last one.
  double duration_seconds = 0;
  // Of completed calls.
  uint64_t input_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  // Tokens that were received by calls that did not complete.
  uint64_t wasted_tokens = 0;
  // Only if limits were given.
  std::optional<uint64_t> num_good;
  // Most tokens in one second of the run, and most calls between sending and end.
  uint64_t max_output_tokens_per_s = 0;
  uint64_t max_concurrent = 0;
  double max_silence_ms = 0;
  uint64_t max_device_kv_bytes = 0;
  // Keyed by the part of the name in the report: ttft, tpot, itl, e2el, ttfe, accept, queue,
  // prefill, send_lag. In milliseconds, over completed calls; without entries that nothing was
  // measured for.
  std::vector<std::pair<std::string, Summary>> latencies_ms;
  std::map<std::string, uint64_t> status_codes;
  std::map<std::string, Rejects> rejects;
};

// Latencies count from the scheduled time of a call.
//   ttft     to the first token         e2el   to the end of the call
//   tpot     (e2el - ttft) / (tokens - 1)
//   itl      time between two events with tokens, of all calls together
//   ttfe     to the first event         accept   to Accepted
//   queue, prefill                      as the server reports them
//   send_lag between the scheduled time and sending: what the client was late
Metrics ComputeMetrics(const std::vector<const CallRecord*>& records, const Goodput& goodput);

// Whether any limit was given.
bool HasLimits(const Goodput& goodput);

}  // namespace folio::loadtest
