#include "engine/sched/forecast.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "engine/sched/fair_share.h"
#include "engine/sched/schedule_simulation.h"

namespace folio {

double LoadItem::WorkOfNext(double tokens) const {
  const double taken = std::min(tokens, prompt_tokens);
  return taken * (next_token_work() + token_growth * taken / 2);
}

void LoadItem::TakeTokens(double tokens) {
  const double next = next_token_work() + token_growth * std::min(tokens, prompt_tokens);
  prompt_tokens -= std::min(tokens, prompt_tokens);
  token_work = next + token_growth * prompt_tokens / 2;
}

void LoadItem::SetWork(double work, double next_token) {
  if (prompt_tokens <= 0) return;
  token_work = work / prompt_tokens;
  token_growth = std::max(0.0, 2 * (token_work - next_token) / prompt_tokens);
}

LoadItem NewItem(const WorkCosts& costs, const AttentionPlan& plan,
                 const std::pair<int64_t, int64_t>& tokens, const Payer& payer) {
  const auto& [begin, end] = tokens;
  Claim claim;
  claim.priority = payer.priority;
  claim.remaining = costs.OfPrompt(plan, begin, end);
  LoadItem item;
  item.prompt_tokens = static_cast<double>(end - begin);
  item.SetWork(claim.remaining, costs.OfPromptToken(plan, begin));
  item.answer_work = costs.OfAnswerBeside(plan, end);
  if (payer.tenant != nullptr) {
    item.tenant = KeyOf(*payer.tenant);
    item.weight = payer.tenant->weight;
  }
  item.rank = claim.rank();
  return item;
}

void ComesNow(const WorkLoad& load, LoadItem* item) {
  if (item->tenant == 0) return;
  const auto other =
      std::find_if(load.items.begin(), load.items.end(),
                   [item](const LoadItem& one) { return one.tenant == item->tenant; });
  if (other == load.items.end()) return;
  item->served = other->served;
  item->rank += item->served;
}

// The median of some futures, that differ in when more comes: the mean would be that of the few in
// which a long text comes just then.
std::optional<Forecast> Predict(const WorkLoad& load, const LoadItem& item, double most_seconds) {
  constexpr int kExactSteps = 256;
  constexpr size_t kFutures = 9;
  // Of all of them: far away they are alike.
  constexpr int kMostSteps = 4096;
  if (!load.rates.known()) return std::nullopt;
  std::vector<Forecast> futures;
  const size_t wanted = load.flows.empty() ? 1 : kFutures;
  for (int steps = 0; futures.size() < wanted && steps < kMostSteps;) {
    ScheduleSimulation simulation(load, item, kExactSteps, futures.size());
    futures.push_back(simulation.Run(item, most_seconds, ScheduleSimulation::Until::kFirstToken));
    steps += simulation.num_simulated();
  }
  const auto middle = futures.begin() + std::ssize(futures) / 2;
  std::nth_element(futures.begin(), middle, futures.end(),
                   [](const Forecast& one, const Forecast& other) {
                     return one.first_token_seconds < other.first_token_seconds;
                   });
  return *middle;
}

// Steps are a sum of parts: those with prompts have as few tokens as beside the most answers, and
// each token of an answer is paid once, with its part of a step that is full of answers as long as
// the cache has room for so many.
double AtMost(const WorkLoad& load, const LoadItem& item) {
  const int64_t most_answers = load.max_running_requests;
  double answer_work = item.answer_work;
  int64_t needed_bytes = item.needed_bytes;
  for (const LoadItem& one : load.items) {
    answer_work = std::max(answer_work, one.answer_work);
    needed_bytes += one.runs ? 0 : one.needed_bytes;
  }
  const auto answers = static_cast<double>(most_answers);
  const double together = needed_bytes <= load.free_bytes ? answers : 1;
  const double full =
      load.rates.Seconds({.answers = answers, .answer_work = answers * answer_work});
  const auto tokens = static_cast<double>(
      std::max<int64_t>(1, std::min<int64_t>(load.prefill_share_tokens,
                                             load.pacer.UsualPromptTokens(most_answers, full))));
  const double empty = load.rates.Seconds({});
  const auto seconds = [&](const LoadItem& one) {
    const double step = load.rates.Seconds(
        {.prompt_tokens = tokens, .prompt_work = tokens * one.token_work, .prompts = 1});
    const double answer =
        load.rates.Seconds({.answers = 1, .answer_work = one.answer_work}) - empty;
    return (one.prompt_tokens / tokens + 1) * step +
           one.answer_tokens * (answer + empty / together);
  };
  double all = seconds(item) + item.answer_tokens * empty;  // it may be the last one
  for (const LoadItem& one : load.items) all += seconds(one);
  return all;
}

// Steps of which each stands for many are enough, however near the deadline is: requests that are
// refused are to cost little.
std::optional<double> IsTooLate(WorkLoad load, const LoadItem& item, double left_seconds) {
  constexpr double kMargin = 1.1;  // steps differ
  if (AtMost(load, item) < left_seconds) return std::nullopt;
  load.flows.clear();
  const double most = kMargin * left_seconds;
  if (!load.rates.known()) return std::nullopt;
  ScheduleSimulation simulation(load, item, /*exact_steps=*/0, /*future=*/0);
  if (simulation.Run(item, most, ScheduleSimulation::Until::kEnd).end_seconds < most) {
    return std::nullopt;
  }
  return most;
}

}  // namespace folio
