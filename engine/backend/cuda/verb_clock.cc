#include "engine/backend/cuda/verb_clock.h"

#include <algorithm>
#include <utility>

namespace folio::cuda {

VerbClock::~VerbClock() {
  for (Event event : events_) FreeEvent(event);
}

void VerbClock::Mark(std::string verb) {
  if (events_.size() == verbs_.size()) {
    Event event = nullptr;
    memory_->Note(MakeTimer(&event));
    if (event == nullptr) return;
    events_.push_back(event);
  }
  memory_->Note(Record(memory_->stream(), events_[verbs_.size()]));
  verbs_.push_back(std::move(verb));
}

std::vector<VerbTimer::VerbTime> VerbClock::Take() {
  memory_->Finish();
  std::vector<VerbTimer::VerbTime> times;
  for (size_t n = 1; n < verbs_.size(); ++n) {
    if (verbs_[n].empty() || !memory_->status().ok()) continue;
    double seconds = 0;
    memory_->Note(SecondsBetween(events_[n - 1], events_[n], &seconds));
    auto found = std::find_if(times.begin(), times.end(),
                              [&](const auto& time) { return time.verb == verbs_[n]; });
    if (found == times.end()) found = times.insert(found, {verbs_[n], 0, 0});
    ++found->calls;
    found->seconds += seconds;
  }
  verbs_.clear();
  return times;
}

}  // namespace folio::cuda
