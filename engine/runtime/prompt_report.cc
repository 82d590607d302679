#include "engine/runtime/prompt_report.h"

#include <algorithm>
#include <utility>

namespace folio {

void PromptReport::Send(const Sequence& sequence, EventSink* sink) {
  // The rows of the step rate the tokens that follow them.
  const int64_t known = sequence.num_in_kv + (with_logprobs_ ? 1 : 0);
  const int64_t end = std::min(known, sequence.num_prompt);
  // Nothing rates the first token.
  const int64_t first = sequence.tokens_begin + (echoes_ ? 0 : 1);
  next_ = std::max(next_, first);
  while (next_ < end) sink->OnEvent(Next(sequence, end));
}

PromptEvent PromptReport::Next(const Sequence& sequence, int64_t end) {
  const bool rated = with_logprobs_ && next_ > sequence.tokens_begin;
  PromptEvent event;
  event.first_position = next_;
  end = std::min(end, next_ + (with_logprobs_ && !rated ? 1 : kMaxTokens));
  for (; next_ < end; ++next_) {
    const int32_t token = sequence.token(next_);
    if (echoes_) {
      event.tokens.push_back(token);
      event.text += detokenizer_.Add(token);
    }
    if (!rated) continue;
    const auto at = static_cast<size_t>(next_ - scores_.first_position);
    event.logprobs.push_back({token, scores_.logprobs[at]});
    if (scores_.top_logprobs.empty()) continue;
    event.top_logprobs.push_back(std::move(scores_.top_logprobs[at]));
  }
  if (echoes_ && next_ == sequence.num_prompt) event.text += detokenizer_.Flush();
  return event;
}

}  // namespace folio
