#include "engine/runtime/slow_step_watch.h"

#include <algorithm>

#include "engine/base/catch_errors.h"

namespace folio {
namespace {

// Keeps the largest ones, which stay sorted.
void NotePrefill(const SlowStep::Prefill& prefill, SlowStep* step) {
  ++step->num_prefills;
  step->prefill_tokens += prefill.num_tokens;
  const auto begin = step->prefills.begin();
  const auto place = std::find_if(
      begin, begin + static_cast<std::ptrdiff_t>(step->num_largest),
      [&](const SlowStep::Prefill& other) { return other.num_tokens < prefill.num_tokens; });
  if (place == step->prefills.end()) return;
  std::move_backward(place, step->prefills.end() - 1, step->prefills.end());
  *place = prefill;
  step->num_largest = std::min(step->num_largest + 1, SlowStep::kMaxPrefills);
}

}  // namespace

void SlowStepWatch::Begin(const std::vector<ScheduledTokens>& step) {
  if (bound_seconds_ <= 0) return;
  step_ = {};
  for (const ScheduledTokens& part : step) {
    const Sequence& sequence = *part.sequence;
    if (sequence.decoding()) {
      ++step_.num_answers;
      step_.answer_context_tokens += sequence.num_in_kv;
    } else {
      NotePrefill({sequence.id, part.num_tokens, sequence.num_in_kv}, &step_);
    }
  }
}

void SlowStepWatch::End(double seconds) {
  if (bound_seconds_ <= 0 || seconds < bound_seconds_) return;
  step_.seconds = seconds;
  CatchErrors([&] { tell_(step_); }).IgnoreError();  // without memory nothing is told
}

}  // namespace folio
