#include "client/cli/format.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

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

std::string FormatSummary(const v1::Completed& completed) {
  const v1::Usage& usage = completed.usage();
  const v1::Timings& timings = completed.timings();
  const v1::MemoryReceipt& memory = completed.memory();
  std::string line = absl::StrFormat(
      "%d prompt tokens (%d cached), %d new tokens; first token after %s, %.1f tokens/s; KV %s",
      usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens(),
      FormatSeconds(timings.time_to_first_token_seconds()), timings.tokens_per_second(),
      FormatBytes(memory.device_kv_bytes_peak()));
  if (memory.shared_kv_bytes() > 0) {
    absl::StrAppend(&line, " + ", FormatBytes(memory.shared_kv_bytes()), " shared");
  }
  if (memory.summary_bytes_peak() > 0) {
    absl::StrAppend(&line, ", chunk summaries ", FormatBytes(memory.summary_bytes_peak()));
  }
  return line;
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
