#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sched/step_pacer.h"
#include "engine/sched/step_rates.h"

namespace folio {

// Work that is there, as a forecast sees it.
struct LoadItem {
  // Tells tenants apart, nothing else; null: nobody's.
  const void* tenant = nullptr;
  double weight = 1;
  double served = 0;  // TenantShare::served
  double rank = 0;    // Claim::rank
  double turn = 0;    // while it waits
  // It has a place, and what it needs of the cache.
  bool runs = false;
  bool needs_place = true;  // not so the prefill of a document
  int64_t needed_bytes = 0;
  // What is left of its prompt, with the work for one of these tokens; and of its answer, as such
  // answers are.
  double prompt_tokens = 0;
  double token_work = 1;
  double answer_tokens = 0;
};

// All of it, and how fast it goes.
struct WorkLoad {
  std::vector<LoadItem> items;  // those that wait in their order
  StepRates rates;
  StepPacer pacer{0};
  int step_tokens = 0;
  int prefill_share_tokens = 0;
  int max_running_requests = 0;
  int64_t free_bytes = 0;
  // A step runs, since so long: what comes now is in the next one.
  bool in_step = false;
  double step_elapsed_seconds = 0;
  // Of the longest answers that were asked for, what answers have come to.
  double answer_part = 1;
};

struct Forecast {
  double queue_seconds = 0;        // until it has its place
  double first_token_seconds = 0;  // until its prompt is in the cache
};

// More than Predict can say, at little cost: as if all that is there were done one after the other.
double AtMost(const WorkLoad& load, const LoadItem& item);

// When an item that comes now would have its first token, if nothing else comes: the work that is
// there goes on as FairShare shares it out, from one end of a prompt or answer to the next, without
// its rounding. No more than `most_seconds` are looked ahead: it says that then. nullopt: too few
// steps have run. Pure.
std::optional<Forecast> Predict(const WorkLoad& load, LoadItem item, double most_seconds);

}  // namespace folio
