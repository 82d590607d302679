// The promises of a Generate stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "folio/v1/inference.pb.h"

namespace folio::loadtest {

// Watches one stream: numbers without gaps, the order of the events, Completed exactly once and as
// the last event before OK, token counts that agree, and no silence above the limit. Used by one
// thread at a time. Times are in seconds of one clock.
class StreamChecker {
 public:
  // A silence limit that heartbeats keep: their interval and what is forgiven.
  StreamChecker(double sent_seconds, double max_silence_ms)
      : last_seconds_(sent_seconds), silence_limit_ms_(max_silence_ms) {}

  void OnEvent(const v1::GenerateEvent& event, double now_seconds);
  // `cancelled`: the client cancelled the call, so that the stream may end anywhere.
  void OnEnd(bool ok, bool cancelled, double now_seconds);

  // Readable lines; empty if all promises were kept.
  const std::vector<std::string>& violations() const { return violations_; }
  // Longest time between two events, the beginning and the end of the call included.
  double max_silence_ms() const { return max_silence_ms_; }

 private:
  // Parts of the stream, in their order.
  enum class Stage { kBegin, kBeforeTokens, kTokens, kCompleted };

  void CheckSilence(double now_seconds);
  void CheckOrder(const v1::GenerateEvent& event);
  void CheckDelta(const v1::Delta& delta);
  void CheckTokens(const v1::GenerateEvent& event);
  void Violation(std::string text);

  double last_seconds_;
  const double silence_limit_ms_;
  double max_silence_ms_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t num_tokens_ = 0;
  std::string request_id_;
  Stage stage_ = Stage::kBegin;
  std::vector<std::string> violations_;
};

}  // namespace folio::loadtest
