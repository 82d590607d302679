// What was measured of one request. Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "folio/v1/inference.pb.h"
#include "loadtest/workload.h"

namespace folio::loadtest {

// Seconds since the beginning of a run. Const after construction, thread-safe.
class RunClock {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  std::chrono::steady_clock::time_point at(double seconds) const {
    return start_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
};

enum class Outcome { kCompleted, kCancelled, kFailed };

// Times are seconds of the RunClock.
struct CallRecord {
  // Tokens that came in one event.
  struct TokenEvent {
    double seconds;
    uint32_t num_tokens;
  };

  RequestSpec spec;
  bool warmup = false;
  // When the schedule wanted it; latencies count from here.
  double scheduled_seconds = 0;
  double sent_seconds = 0;
  std::optional<double> first_event_seconds;
  std::optional<double> accepted_seconds;
  std::vector<TokenEvent> token_events;
  std::vector<uint32_t> token_ids;
  double end_seconds = 0;
  std::optional<v1::Completed> completed;
  // The client cancelled the call before it ended.
  bool cancelled = false;
  absl::Status status;
  double max_silence_ms = 0;
  std::vector<std::string> violations;

  Outcome outcome() const {
    if (status.ok()) return Outcome::kCompleted;
    return cancelled && absl::IsCancelled(status) ? Outcome::kCancelled : Outcome::kFailed;
  }
};

}  // namespace folio::loadtest
