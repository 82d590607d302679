#include "engine/sched/answer_lengths.h"

#include <algorithm>

namespace folio {
namespace {

constexpr double kShareOfNew = 0.05;
constexpr double kForgotten = 0.01;  // of the longest one, by each that ends

bool HasAll(const StopParams& stop) {
  return stop.ignore_eos && stop.stop_strings.empty() && stop.stop_token_ids.empty();
}

}  // namespace

void AnswerLengths::Note(const StopParams& stop, int64_t had) {
  if (HasAll(stop)) return;  // it says nothing of others
  const auto tokens = static_cast<double>(had);
  part_ += kShareOfNew * (tokens / stop.max_new_tokens - part_);
  longest_ = std::max(tokens, (1 - kForgotten) * longest_);
}

double AnswerLengths::Expected(const StopParams& stop) const {
  const double most = stop.max_new_tokens;
  if (HasAll(stop)) return most;
  const double least = std::max(1, stop.min_new_tokens);
  return std::clamp(std::min(part_ * most, longest_), std::min(least, most), most);
}

}  // namespace folio
