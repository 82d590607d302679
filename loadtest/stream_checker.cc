#include "loadtest/stream_checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace folio::loadtest {

void StreamChecker::OnEvent(const v1::GenerateEvent& event, double now_seconds) {
  CheckSilence(now_seconds);
  if (event.sequence() != next_sequence_) {
    Violation(absl::StrCat("event number ", event.sequence(), " where ", next_sequence_,
                           " was expected"));
  }
  next_sequence_ = event.sequence() + 1;
  if (stage_ == Stage::kBegin) request_id_ = event.request_id();
  if (event.request_id() != request_id_) Violation("the request id changed within the stream");
  CheckTokens(event);
  CheckOrder(event);
}

void StreamChecker::OnEnd(bool ok, bool cancelled, double now_seconds) {
  if (!cancelled) CheckSilence(now_seconds);
  const bool completed = stage_ == Stage::kCompleted;
  if (ok && !completed) Violation("the stream ended with OK but without Completed");
  if (!ok && !cancelled && completed) Violation("Completed was followed by an error");
}

void StreamChecker::CheckSilence(double now_seconds) {
  const double silence_ms = (now_seconds - last_seconds_) * 1e3;
  last_seconds_ = now_seconds;
  max_silence_ms_ = std::max(max_silence_ms_, silence_ms);
  if (silence_ms > silence_limit_ms_) {
    Violation(
        absl::StrFormat("silent for %.0f ms, the limit is %.0f ms", silence_ms, silence_limit_ms_));
  }
}

void StreamChecker::CheckOrder(const v1::GenerateEvent& event) {
  using Event = v1::GenerateEvent;
  if (stage_ == Stage::kCompleted) Violation("an event after Completed");
  if ((stage_ == Stage::kBegin) != event.has_accepted()) {
    Violation("Accepted is not exactly the first event");
  }
  switch (event.event_case()) {
    case Event::kAccepted:
      stage_ = std::max(stage_, Stage::kBeforeTokens);
      break;
    case Event::kQueued:
    case Event::kPrefill:
      if (stage_ == Stage::kTokens) Violation("Queued or Prefill after the first Delta");
      break;
    case Event::kPromptLogprobs:
      if (stage_ == Stage::kTokens) Violation("PromptLogprobs after the first Delta");
      break;
    case Event::kDelta:
      CheckDelta(event.delta());
      break;
    case Event::kCompleted:
      stage_ = Stage::kCompleted;
      break;
    case Event::kEvidence:
    case Event::kLayerEvidence:
      if (stage_ != Stage::kTokens) Violation("Evidence before the first Delta");
      break;
    case Event::kHeartbeat:
      break;
    case Event::EVENT_NOT_SET:
      Violation("an event without content");
      break;
  }
  if (stage_ == Stage::kBegin) stage_ = Stage::kBeforeTokens;
}

void StreamChecker::CheckDelta(const v1::Delta& delta) {
  if (delta.echo() && stage_ == Stage::kTokens) Violation("an echo of the prompt in the answer");
  if (!delta.echo()) stage_ = std::max(stage_, Stage::kTokens);
}

void StreamChecker::CheckTokens(const v1::GenerateEvent& event) {
  if (event.has_delta() && !event.delta().echo()) num_tokens_ += event.delta().token_ids_size();
  if (event.has_prefill() && event.prefill().processed_tokens() > event.prefill().total_tokens()) {
    Violation("more tokens prefilled than there are");
  }
  if (event.has_completed() && event.completed().usage().completion_tokens() != num_tokens_) {
    Violation(absl::StrCat("the stream carried ", num_tokens_, " tokens but Completed says ",
                           event.completed().usage().completion_tokens()));
  }
}

void StreamChecker::Violation(std::string text) { violations_.push_back(std::move(text)); }

}  // namespace folio::loadtest
