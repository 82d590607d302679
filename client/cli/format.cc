#include "client/cli/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/strategy.h"

namespace folio::cli {

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 0.1) return absl::StrFormat("%.1f ms", std::max(seconds, 0.0) * 1e3);
  if (seconds < 10) return absl::StrFormat("%.2f s", seconds);
  const int64_t whole = std::llround(std::min(seconds, 1e9));
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

namespace {

// By tier.
std::string FormatMemory(const v1::MemoryReceipt& memory) {
  std::string text = FormatBytes(memory.device_kv_bytes_peak());
  if (memory.host_kv_bytes_peak() > 0) {
    absl::StrAppend(&text, " and ", FormatBytes(memory.host_kv_bytes_peak()), " on the host");
  }
  if (memory.disk_kv_bytes_peak() > 0) {
    absl::StrAppend(&text, " and ", FormatBytes(memory.disk_kv_bytes_peak()), " on disk");
  }
  if (memory.shared_kv_bytes() > 0) {
    absl::StrAppend(&text, " + ", FormatBytes(memory.shared_kv_bytes()), " shared");
  }
  if (memory.summary_bytes_peak() > 0) {
    absl::StrAppend(&text, ", chunk summaries ", FormatBytes(memory.summary_bytes_peak()));
  }
  return text;
}

// What a request waited for, where that was noticeable.
std::string FormatWait(const v1::Scheduling& scheduling) {
  constexpr double kNoticeable = 0.1;
  const std::pair<double, const char*> waits[] = {
      {scheduling.turn_wait_seconds(), "its turn"},
      {scheduling.memory_wait_seconds(), "memory"},
      {scheduling.document_wait_seconds(), "its document"}};
  std::string text;
  for (const auto& [seconds, reason] : waits) {
    if (seconds < kNoticeable) continue;
    absl::StrAppend(&text, text.empty() ? "; waited " : ", ", FormatSeconds(seconds), " for ",
                    reason);
  }
  return text;
}

}  // namespace

std::string FormatSummary(const v1::Completed& completed) {
  const v1::Usage& usage = completed.usage();
  const v1::Timings& timings = completed.timings();
  const v1::MemoryReceipt& memory = completed.memory();
  std::string line = absl::StrFormat(
      "%d prompt tokens (%d cached), %d new tokens; first token after %s, %.1f tokens/s; KV %s",
      usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens(),
      FormatSeconds(timings.time_to_first_token_seconds()), timings.tokens_per_second(),
      FormatMemory(memory));
  if (const uint64_t slices = memory.slice_hits() + memory.slice_misses(); slices > 0) {
    absl::StrAppendFormat(
        &line, "; %s read from %s, %.0f %% of slices were %s",
        FormatBytes(memory.host_read_bytes() + memory.disk_read_bytes()),
        memory.host_read_bytes() > 0 ? "the host" : "disk",
        100.0 * static_cast<double>(memory.slice_hits()) / static_cast<double>(slices),
        memory.host_read_bytes() > 0 ? "on the device" : "in memory");
  }
  return line + FormatWait(completed.scheduling());
}

std::string FormatEstimate(const v1::EstimateResponse& estimate) {
  std::string text = absl::StrFormat("%d prompt tokens, %d with the longest answer, under %s\n",
                                     estimate.prompt_tokens(), estimate.total_tokens(),
                                     client::MethodName(estimate.strategy()));
  absl::StrAppend(&text, "KV: ", FormatMemory(estimate.memory()), "\n");
  const v1::MemoryReceipt& document = estimate.document_memory();
  if (document.device_kv_bytes_peak() + document.host_kv_bytes_peak() +
          document.disk_kv_bytes_peak() >
      0) {
    absl::StrAppend(
        &text, "KV of the document, to be prefilled or read first: ", FormatMemory(document), "\n");
  }
  if (estimate.has_time_to_first_token_seconds()) {
    absl::StrAppend(&text, "first token expected after ",
                    FormatSeconds(estimate.time_to_first_token_seconds()), ", of which ",
                    FormatSeconds(estimate.queue_seconds()), " in the queue\n");
  }
  switch (estimate.fit()) {
    case v1::EstimateResponse::FIT_NOW:
      absl::StrAppend(&text, "fits now\n");
      break;
    case v1::EstimateResponse::FIT_WHEN_IDLE:
      absl::StrAppend(&text, "fits when nothing else runs: ", estimate.reason(), "\n");
      break;
    default:
      absl::StrAppend(&text, "does not fit: ", estimate.reason(), "\n");
  }
  return text;
}

std::string FormatEvidence(const v1::Evidence& evidence) {
  if (evidence.spans().empty()) return "no evidence: the heads saw the whole text\n";
  std::string text;
  for (const v1::EvidenceSpan& span : evidence.spans()) {
    absl::StrAppendFormat(&text, "%3.0f %% of the votes, tokens %d to %d", 100 * span.score(),
                          span.token_begin(), span.token_end());
    if (span.has_byte_begin()) {
      absl::StrAppendFormat(&text, ", bytes %d to %d", span.byte_begin(), span.byte_end());
    }
    absl::StrAppend(&text, "\n  \"", absl::StrReplaceAll(span.text(), {{"\n", " "}}), "\"\n");
  }
  return text;
}

}  // namespace folio::cli
