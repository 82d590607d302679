#include "engine/sched/fair_share.h"

#include <functional>
#include <limits>
#include <string>

namespace folio {
namespace {

// So much work of its tenant comes first for each step of a request's priority.
constexpr double kWorkPerPriority = 256;
// What comes before requests that are late: more than any queue has.
constexpr double kWorkOfLate = 1e15;
// Nobody is owed, or owes, more than so many steps do.
constexpr double kBoundSteps = 4;
constexpr double kMostPriority = 100;
// Of what a token costs, as sums are rounded.
constexpr double kWhole = 1 - 1e-9;
// What the priority of a tenant is worth where places are short, and how fast that is worn off.
constexpr double kTurnsPerPriority = 0.1;
constexpr double kStepsPerTurn = 16;
// Of the cache, which no tenant alone can take.
constexpr int64_t kPartForOthers = 8;

}  // namespace

uint64_t KeyOf(const Tenant& tenant) { return std::hash<std::string>{}(tenant.name) | 1; }

double Claim::rank() const {
  const double rank = joined + remaining + kWorkPerPriority * priority;
  return late ? rank + kWorkOfLate : rank;
}

void FairShare::Join(Claim* claim) {
  claim->joined = claim->share().served;
  claim->since_step = step_;
  claim->order = num_joined_++;
}

void FairShare::BeginStep() {
  ++step_;
  bound_ = kBoundSteps * work_;
  work_ = 0;
}

void FairShare::Touch(TenantShare* share) {
  if (share->last_step < step_ - 1) {
    const int priority = share->tenant == nullptr ? 0 : share->tenant->priority;
    share->deficit = -bound_ * std::clamp(priority / kMostPriority, -1.0, 1.0);
  }
  share->last_step = step_;
}

void FairShare::Charge(Claim* claim, double work) {
  TenantShare& share = claim->share();
  Touch(&share);
  work_ += work;
  share.served += work;
  share.deficit = std::max(share.deficit - work, -std::max(bound_, kBoundSteps * work));
}

bool FairShare::AddRound(std::span<Claim*> claims, int64_t budget, double most_work) {
  constexpr double kNone = std::numeric_limits<double>::max();
  double weights = 0;
  double least_cost = kNone;
  double lift = kNone;  // until the first one may have a token
  for (Claim* claim : claims) claim->share().count = 0;
  for (Claim* claim : claims) {
    TenantShare& share = claim->share();
    if (!claim->wants || share.count++ > 0) continue;
    weights += share.weight;
    least_cost = std::min(least_cost, claim->cost);
    lift = std::min(lift, (claim->cost - share.deficit) / share.weight);
  }
  if (weights == 0) return false;
  const double work = std::min(most_work, static_cast<double>(budget) * least_cost);
  const double each = std::max(work / weights, lift);
  for (Claim* claim : claims) {
    TenantShare& share = claim->share();
    if (share.count > 0) share.deficit += each * share.weight;
    share.count = 0;
  }
  return true;
}

double FairShare::WorkFor(std::span<Claim*> claims, int64_t budget) {
  double weights = 0;
  double least_cost = std::numeric_limits<double>::max();
  for (Claim* claim : claims) claim->share().asked = claim->share().count = 0;
  for (Claim* claim : claims) {
    TenantShare& share = claim->share();
    if (share.count++ == 0) weights += share.weight;
    share.asked += claim->remaining;
    least_cost = std::min(least_cost, claim->cost);
  }
  const double all = static_cast<double>(budget) * least_cost;
  double level = 0;  // of work, for a weight of 1
  for (const Claim* claim : claims) {
    const double asked = claim->share().asked / claim->share().weight;
    if (asked * weights <= all) level = std::max(level, asked);
  }
  return level == 0 ? std::numeric_limits<double>::max() : level * weights;
}

void FairShare::Distribute(std::span<Claim*> claims, int64_t budget, double most_work, Give give) {
  for (Claim* claim : claims) {
    Touch(&claim->share());
    claim->wants = true;
  }
  std::stable_sort(claims.begin(), claims.end(),
                   [](const Claim* a, const Claim* b) { return a->rank() < b->rank(); });
  while (budget > 0 && most_work > 0 && AddRound(claims, budget, most_work)) {
    std::stable_sort(claims.begin(), claims.end(), [](Claim* a, Claim* b) {
      return a->share().deficit / a->share().weight > b->share().deficit / b->share().weight;
    });
    for (Claim* claim : claims) {
      // Who is owed less than a token keeps that: no text has a token of a step just for the rest.
      const double owed = claim->share().deficit;
      if (!claim->wants || budget <= 0 || most_work <= 0 || owed < kWhole * claim->cost) continue;
      const double tokens = std::min(owed, most_work) / claim->cost;
      const auto most = std::clamp<int64_t>(static_cast<int64_t>(tokens), 1, budget);
      const int64_t taken = give(claim, most);
      if (taken < most) claim->wants = false;
      const double work = static_cast<double>(taken) * claim->cost;
      budget -= taken;
      most_work -= work;
      if (taken > 0) Charge(claim, work);
    }
  }
  Settle(claims);
}

// Who wants no more has had all that it could have. What all who want more are owed is owed to
// none: who comes next would wait for it.
void FairShare::Settle(std::span<Claim*> claims) {
  const double bound = std::max(bound_, kBoundSteps * work_);
  for (Claim* claim : claims) claim->share().count = 0;
  double of_all = std::numeric_limits<double>::max();
  for (Claim* claim : claims) {
    TenantShare& share = claim->share();
    share.count += claim->wants ? 1 : 0;
    if (claim->wants) of_all = std::min(of_all, share.deficit / share.weight);
  }
  for (Claim* claim : claims) {
    TenantShare& share = claim->share();
    const bool settled = share.count < 0;  // with another claim of it
    if (settled) continue;
    const bool wants = share.count > 0;
    if (wants && of_all > 0) share.deficit -= of_all * share.weight;
    share.deficit = std::clamp(share.deficit, -bound, wants ? bound : 0.0);
    share.count = -1;
  }
}

double FairShare::Handicap(const Claim& claim, int least_priority) const {
  const TenantShare* const share = claim.tenant;
  const int priority = share == nullptr || share->tenant == nullptr ? 0 : share->tenant->priority;
  const double waited = static_cast<double>(step_ - claim.since_step);
  return std::max(0.0, kTurnsPerPriority * (priority - least_priority) - waited / kStepsPerTurn);
}

bool FairShare::LeavesRoom(const TenantShare& share, int64_t more_bytes, int64_t free_bytes,
                           int64_t capacity_bytes) {
  if (share.tenant == nullptr || share.admitted == 0) return true;
  return free_bytes - more_bytes >= capacity_bytes / kPartForOthers;
}

}  // namespace folio
