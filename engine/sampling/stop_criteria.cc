#include "engine/sampling/stop_criteria.h"

#include <algorithm>
#include <utility>

namespace folio {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t PartialMatch(const std::string& text, const std::string& stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) return n;
  }
  return 0;
}

}  // namespace

StopStringMatcher::Result StopStringMatcher::Feed(const std::string& text) {
  held_ += text;
  size_t first = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      found = &stop;
    }
  }
  if (found != nullptr) {
    Result result{held_.substr(0, first), *found};
    held_.clear();
    return result;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, PartialMatch(held_, stop));
  // A held-back tail must not begin inside a UTF-8 character: stop strings may start with any byte,
  // but only whole characters leave.
  size_t cut = held_.size() - keep;
  while (cut > 0 && cut < held_.size() && (static_cast<unsigned char>(held_[cut]) & 0xC0) == 0x80) {
    --cut;
  }
  Result result{held_.substr(0, cut), std::nullopt};
  held_.erase(0, cut);
  return result;
}

std::string StopStringMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace folio
