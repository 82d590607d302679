#include "loadtest/metrics.h"

#include <algorithm>
#include <cmath>

#include "client/status.h"

namespace folio::loadtest {
namespace {

// Latencies of one completed call in milliseconds.
struct CallLatencies {
  double e2el_ms = 0;
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
};

CallLatencies Latencies(const CallRecord& call) {
  CallLatencies latencies;
  latencies.e2el_ms = (call.end_seconds - call.scheduled_seconds) * 1e3;
  if (call.token_events.empty()) return latencies;
  latencies.ttft_ms = (call.token_events.front().seconds - call.scheduled_seconds) * 1e3;
  const size_t num_tokens = call.token_ids.size();
  if (num_tokens > 1) {
    latencies.tpot_ms =
        (latencies.e2el_ms - *latencies.ttft_ms) / static_cast<double>(num_tokens - 1);
  }
  return latencies;
}

// A limit on something that a call has not is kept.
bool IsGood(const CallLatencies& call, const Goodput& goodput) {
  const auto within = [](std::optional<double> value, std::optional<double> limit) {
    return !value || !limit || *value <= *limit;
  };
  return within(call.ttft_ms, goodput.ttft_ms) && within(call.tpot_ms, goodput.tpot_ms) &&
         within(call.e2el_ms, goodput.e2el_ms);
}

class MetricsBuilder {
 public:
  explicit MetricsBuilder(const Goodput& goodput) : goodput_(goodput) {
    if (HasLimits(goodput)) metrics_.num_good = 0;
  }

  void Add(const CallRecord& call) {
    ++metrics_.num_prompts;
    ++metrics_.status_codes[absl::StatusCodeToString(call.status.code())];
    metrics_.max_silence_ms = std::max(metrics_.max_silence_ms, call.max_silence_ms);
    begin_seconds_ = std::min(begin_seconds_, call.scheduled_seconds);
    end_seconds_ = std::max(end_seconds_, call.end_seconds);
    changes_.emplace_back(call.sent_seconds, 1);
    changes_.emplace_back(call.end_seconds, -1);
    for (const auto& event : call.token_events) {
      tokens_per_second_[static_cast<int64_t>(std::floor(event.seconds))] += event.num_tokens;
    }
    switch (call.outcome()) {
      case Outcome::kCompleted:
        AddCompleted(call);
        return;
      case Outcome::kCancelled:
        ++metrics_.cancelled;
        break;
      case Outcome::kFailed:
        ++metrics_.failed;
        AddReject(call.status);
        break;
    }
    metrics_.wasted_tokens += call.token_ids.size();
  }

  Metrics Finish() {
    for (const char* name :
         {"ttft", "tpot", "itl", "e2el", "ttfe", "accept", "queue", "prefill", "send_lag"}) {
      const auto samples = samples_ms_.find(name);
      if (samples == samples_ms_.end()) continue;
      metrics_.latencies_ms.emplace_back(name, Summarize(std::move(samples->second)));
    }
    if (metrics_.num_prompts > 0) metrics_.duration_seconds = end_seconds_ - begin_seconds_;
    for (const auto& [second, tokens] : tokens_per_second_) {
      metrics_.max_output_tokens_per_s = std::max(metrics_.max_output_tokens_per_s, tokens);
    }
    // At equal times ends come before beginnings.
    std::sort(changes_.begin(), changes_.end());
    int64_t concurrent = 0;
    for (const auto& [seconds, change] : changes_) {
      concurrent += change;
      metrics_.max_concurrent = std::max(metrics_.max_concurrent,
                                         static_cast<uint64_t>(std::max<int64_t>(concurrent, 0)));
    }
    return std::move(metrics_);
  }

 private:
  void AddCompleted(const CallRecord& call) {
    ++metrics_.completed;
    metrics_.output_tokens += call.token_ids.size();
    const CallLatencies latencies = Latencies(call);
    if (metrics_.num_good && IsGood(latencies, goodput_)) ++*metrics_.num_good;
    samples_ms_["e2el"].push_back(latencies.e2el_ms);
    if (latencies.ttft_ms) samples_ms_["ttft"].push_back(*latencies.ttft_ms);
    if (latencies.tpot_ms) samples_ms_["tpot"].push_back(*latencies.tpot_ms);
    for (size_t i = 1; i < call.token_events.size(); ++i) {
      samples_ms_["itl"].push_back(
          (call.token_events[i].seconds - call.token_events[i - 1].seconds) * 1e3);
    }
    const double scheduled = call.scheduled_seconds;
    samples_ms_["send_lag"].push_back((call.sent_seconds - scheduled) * 1e3);
    if (call.first_event_seconds) {
      samples_ms_["ttfe"].push_back((*call.first_event_seconds - scheduled) * 1e3);
    }
    if (call.accepted_seconds) {
      samples_ms_["accept"].push_back((*call.accepted_seconds - scheduled) * 1e3);
    }
    if (call.completed) AddServerNumbers(*call.completed);
  }

  void AddServerNumbers(const v1::Completed& completed) {
    metrics_.input_tokens += completed.usage().prompt_tokens();
    metrics_.cached_tokens += completed.usage().cached_tokens();
    metrics_.max_device_kv_bytes =
        std::max(metrics_.max_device_kv_bytes, completed.memory().device_kv_bytes_peak());
    if (!completed.has_timings()) return;
    samples_ms_["queue"].push_back(completed.timings().queue_seconds() * 1e3);
    samples_ms_["prefill"].push_back(completed.timings().prefill_seconds() * 1e3);
  }

  void AddReject(const absl::Status& status) {
    std::string reason = client::ErrorReason(status);
    const bool is_late = reason == "DEADLINE_TOO_SOON";
    if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status) && !is_late) return;
    if (reason.empty()) reason = absl::StatusCodeToString(status.code());
    Rejects& rejects = metrics_.rejects[reason];
    ++rejects.count;
    const auto delay = client::RetryDelay(status);
    if (!delay) return;
    ++rejects.num_with_delay;
    rejects.mean_retry_delay_seconds +=
        (absl::ToDoubleSeconds(*delay) - rejects.mean_retry_delay_seconds) /
        static_cast<double>(rejects.num_with_delay);
  }

  const Goodput goodput_;
  Metrics metrics_;
  double begin_seconds_ = 1e18;
  double end_seconds_ = 0;
  std::map<std::string, std::vector<double>> samples_ms_;
  std::map<int64_t, uint64_t> tokens_per_second_;
  std::vector<std::pair<double, int>> changes_;
};

}  // namespace

bool HasLimits(const Goodput& goodput) {
  return goodput.ttft_ms || goodput.tpot_ms || goodput.e2el_ms;
}

Metrics ComputeMetrics(const std::vector<const CallRecord*>& records, const Goodput& goodput) {
  MetricsBuilder builder(goodput);
  for (const CallRecord* record : records) builder.Add(*record);
  return builder.Finish();
}

}  // namespace folio::loadtest
