#include "engine/sched/arrivals.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace folio {
namespace {

constexpr size_t kMost = 256;
constexpr double kMostSeconds = 300;
// Sooner nobody knows how often they come.
constexpr double kLeastSeconds = 1;

double Since(SteadyTime then, SteadyTime now) {
  return std::chrono::duration<double>(now - then).count();
}

// Sizes are about the same within a factor of two.
int SizeOf(const LoadItem& item) { return std::ilogb(std::max(1.0, item.work())); }

}  // namespace

void Arrivals::Note(const LoadItem& item, bool together, SteadyTime now) {
  last_.push_back({now, item, together});
  if (last_.size() <= kMost) return;
  start_ = last_.front().time;
  last_.pop_front();
}

void Arrivals::Describe(SteadyTime now, std::vector<WorkFlow>* flows) const {
  flows->clear();
  const double seconds = std::clamp(Since(start_, now), kLeastSeconds, kMostSeconds);
  for (const Arrival& arrival : last_) {
    if (Since(arrival.time, now) > seconds) continue;
    const LoadItem& item = arrival.item;
    auto flow = std::find_if(flows->begin(), flows->end(), [&item](const WorkFlow& one) {
      return one.item.tenant == item.tenant && SizeOf(one.item) == SizeOf(item);
    });
    if (flow == flows->end()) flow = flows->insert(flow, WorkFlow{.item = item});
    // The mean of all: those before count as often as they were.
    flow->together += arrival.together ? 1 : 0;
    const double count = ++flow->count;
    const auto follow = [count](double one, double* mean) { *mean += (one - *mean) / count; };
    follow(item.prompt_tokens, &flow->item.prompt_tokens);
    follow(item.token_work, &flow->item.token_work);
    follow(item.token_growth, &flow->item.token_growth);
    follow(item.answer_tokens, &flow->item.answer_tokens);
  }
  for (WorkFlow& flow : *flows) flow.per_second = flow.count / seconds;
}

}  // namespace folio
