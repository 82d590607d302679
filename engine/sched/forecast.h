#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/sched/answer_lengths.h"
#include "engine/sched/fair_share.h"
#include "engine/sched/step_pacer.h"
#include "engine/sched/step_rates.h"
#include "engine/sched/work_costs.h"
#include "engine/types/attention_plan.h"
#include "engine/types/tenant.h"

namespace folio {

// Work that is there, as a forecast sees it.
struct LoadItem {
  // The handicap of one that has given its place away for now.
  static constexpr double kFirst = -1e9;

  // Of the rest of its prompt; of its next token, and of so many of these.
  double work() const { return prompt_tokens * token_work; }
  double next_token_work() const { return token_work - token_growth * prompt_tokens / 2; }
  double WorkOfNext(double tokens) const;
  // So many of them are done.
  void TakeTokens(double tokens);
  // Its tokens are all so much work, and the next one so much: it grows evenly in between.
  void SetWork(double work, double next_token);

  uint64_t tenant = 0;  // TenantShare::key
  double weight = 1;
  double served = 0;       // TenantShare::served
  double deficit = 0;      // TenantShare::deficit
  int64_t last_step = -2;  // TenantShare::last_step
  double rank = 0;         // Claim::rank
  double handicap = 0;     // Claim::handicap, while it waits
  // It has a place, and what it needs of the cache.
  bool runs = false;
  bool needs_place = true;  // not so the prefill of a document
  int64_t needed_bytes = 0;
  // What is left of its prompt, with the work for one of these tokens in the mean, and by how much
  // each is more than the one before; and of its answer, as such answers are.
  double prompt_tokens = 0;
  double token_work = 1;
  double token_growth = 0;
  double answer_tokens = 0;
  // Of each of these, beside its part of the weights (WorkCosts).
  double answer_work = 0;
};

// Requests that go on coming, all alike.
struct WorkFlow {
  LoadItem item;
  double per_second = 0;
  int count = 0;     // that have come, as far back as was looked
  int together = 0;  // of these: while their tenant had others here
};

// All of it, and how fast it goes.
struct WorkLoad {
  std::vector<LoadItem> items;  // those that wait in their order
  std::vector<WorkFlow> flows;  // what is expected to come
  StepRates rates;
  StepPacer pacer{0};
  FairShare fair_share;
  // Of a step with answers, which share it.
  double weights_work = 0;
  int step_tokens = 0;
  int prefill_share_tokens = 0;
  int max_running_requests = 0;
  int64_t free_bytes = 0;
  // A step runs, since so long: what comes now is in the next one.
  bool in_step = false;
  double step_elapsed_seconds = 0;
  AnswerLengths answers;
};

struct Forecast {
  double queue_seconds = 0;        // until it has its place
  double first_token_seconds = 0;  // until its prompt is in the cache
  double end_seconds = 0;          // until its answer is whole, where that is asked for
};

// Tokens [first, second) of a prompt under a plan, on account of a tenant that has nothing else.
// Without what they need of the cache, and the answer.
LoadItem NewItem(const WorkCosts& costs, const AttentionPlan& plan,
                 const std::pair<int64_t, int64_t>& tokens, const Payer& payer);

// A new item comes beside what is there: its tenant has had work before.
void ComesNow(const WorkLoad& load, LoadItem* item);

// When an item that comes now would have its first token: the work that is there, and what comes
// as the flows say, goes on as FairShare shares it out (ScheduleSimulation). Of its own tenant more
// is expected only where some is there beside it, or was when more came: who asks one after the
// other asks nothing meanwhile. No more than `most_seconds` are looked ahead: it says that then.
// nullopt: too few steps have run. Pure.
std::optional<Forecast> Predict(const WorkLoad& load, const LoadItem& item, double most_seconds);

// Whether the answer to an item that comes now is expected to end after `left_seconds`, even if
// nothing else comes. Returns the seconds that it takes at least, as expected; nullopt: it may be
// in time.
std::optional<double> IsTooLate(WorkLoad load, const LoadItem& item, double left_seconds);

// More than Predict can say if nothing else comes, at little cost, and no less than its answer
// takes to its end: as if all that is there were done one after the other.
double AtMost(const WorkLoad& load, const LoadItem& item);

}  // namespace folio
