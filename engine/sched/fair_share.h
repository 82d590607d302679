#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <span>

#include "absl/functional/function_ref.h"
#include "engine/types/tenant.h"

namespace folio {

// Who runs next: the one policy of steps, places and memory. Work is counted in tokens of a prompt
// that attend to nothing (WorkCosts).
//
// Tenants share each step by deficit round robin (Shreedhar and Varghese, 1996): every round adds
// to what each of them is owed by its weight, and who is owed something is served; rounds go on
// until the step is full or nobody wants more, so nothing is left idle. Answers come first, and are
// charged. Nobody is owed anything for a time without work, and nobody owes more than a few steps.
// Within a tenant the shortest remaining prefill comes first; a request ages by the work that its
// tenant has had since it came, so one of n tokens lets later ones of about n tokens pass, and no
// more.

// Tells tenants apart by their names; never 0.
uint64_t KeyOf(const Tenant& tenant);

// What the policy knows of one tenant. Engine thread only.
struct TenantShare {
  void Set(const TenantPtr& now) {
    tenant = now;
    key = KeyOf(*now);
    weight = std::clamp(now->weight, 1e-3, 1e3);
  }
  // Whether its limits let it have so much more of the cache.
  bool MayReserve(int64_t bytes) const {
    const int64_t most = tenant == nullptr ? 0 : tenant->limits.max_kv_bytes;
    return most == 0 || bytes <= most - reserved_bytes;
  }
  bool MayAdmit() const {
    const int most = tenant == nullptr ? 0 : tenant->limits.max_running_requests;
    return most == 0 || admitted < most;
  }

  TenantPtr tenant;  // null: nobody's
  uint64_t key = 0;  // KeyOf
  double weight = 1;
  // Work that it has had: the clock by which its requests age.
  double served = 0;
  // Work that it is owed; below 0: it has had more than its share.
  double deficit = 0;
  // The last one in which it had work.
  int64_t last_step = -2;
  // Of the cache, for its requests, streams and documents. Other threads read it, too: it is
  // written as an atomic.
  int64_t reserved_bytes = 0;
  // Its requests that have a place, or had one and gave it up for now.
  int admitted = 0;
  // One of its requests, which others have passed often enough, finds no memory: those behind it
  // wait.
  bool blocked = false;
  // Of whoever counts its claims, or their work, between two calls.
  int count = 0;
  double asked = 0;
};

// Work that asks for tokens of a step, or for a place in the batch.
struct Claim {
  TenantShare& share() { return tenant == nullptr ? own : *tenant; }
  const TenantShare& share() const { return tenant == nullptr ? own : *tenant; }
  // Among those of its tenant, lower first.
  double rank() const;

  TenantShare* tenant = nullptr;  // null: it is a tenant's of its own
  TenantShare own;
  int priority = 0;
  double joined = 0;
  int64_t since_step = 0;
  int64_t order = 0;  // of all, as they came
  // It would end after its deadline: it runs when nobody else wants to.
  bool late = false;
  // Work until its first token; of each of its next tokens.
  double remaining = 0;
  double cost = 1;
  // Between two calls: its turn for a place, and how much later that is than by the number of its
  // tenant's requests; whether it wants more of the step, and which part of it is its own.
  double turn = 0;
  double handicap = 0;
  bool wants = false;
  int64_t part = 0;
};

class FairShare {
 public:
  // It begins to wait.
  void Join(Claim* claim);

  // A step is planned from now on.
  void BeginStep();
  int64_t step() const { return step_; }

  // It has so much of the step, whatever it is owed: an answer's next token.
  void Charge(Claim* claim, double work);

  // Shares up to `budget` tokens out, of about `most_work` at most; reorders the claims. `give` is
  // asked to give a claim up to so many tokens of the budget, at least one, and returns how many it
  // has taken; fewer than that: the claim wants no more. Allocates nothing that it needs.
  using Give = absl::FunctionRef<int64_t(Claim* claim, int64_t most)>;
  void Distribute(std::span<Claim*> claims, int64_t budget, double most_work, Give give);

  // The most work that a step of so many tokens should have: if all that some tenants ask for is
  // within their shares, what ends that, and as much for the others. So who asks for little waits
  // for as much work of others as its own, not for a whole step of theirs. Allocates nothing.
  static double WorkFor(std::span<Claim*> claims, int64_t budget);

  // Orders requests that wait for a place: the fewer of its tenant, for its weight, are admitted or
  // come before it, the earlier comes one; those of one tenant by rank. Who comes from a tenant of
  // another priority comes some turns later, or earlier, but the longer it waits the less so. Of
  // equals the one that came first. A Request has `Claim& claim()`. Allocates nothing.
  template <typename Request>
  void TakeTurns(std::initializer_list<const std::list<Request*>*> admitted,
                 std::list<Request*>* waiting) const;

  // Which one of those that run gives its place to a request: the latest of the tenant that has
  // most for its weight, if it has at least as many without this one as the other one with it; or
  // two, where that has none. Null: there is no such one.
  template <typename Request>
  static Request* WhoGivesWay(Request* request, const std::list<Request*>& running);

  // Whether a tenant may have so much more of the cache for a request. A part is kept for those who
  // have none admitted: they need not wait for one of the first one's long prompts to end.
  static bool LeavesRoom(const TenantShare& share, int64_t more_bytes, int64_t free_bytes,
                         int64_t capacity_bytes);

 private:
  // Turns behind all others.
  static constexpr double kLast = 1e9;

  void Touch(TenantShare* share);
  // Adds to what the tenants are owed that want more; false if there is none.
  static bool AddRound(std::span<Claim*> claims, int64_t budget, double most_work);
  void Settle(std::span<Claim*> claims);
  // Of `count` places.
  static bool HasTooMany(const TenantShare& one, const TenantShare& other) {
    if (one.count < 2) return false;
    return other.count == 0 || (one.count - 1) / one.weight >= (other.count + 1) / other.weight;
  }
  // Turns later, for a request of a tenant with a priority, than one with the least.
  double Handicap(const Claim& claim, int least_priority) const;

  int64_t num_joined_ = 0;
  int64_t step_ = 0;
  double work_ = 0;   // of this step
  double bound_ = 0;  // of what anybody is owed, or owes
};

template <typename Request>
void FairShare::TakeTurns(std::initializer_list<const std::list<Request*>*> admitted,
                          std::list<Request*>* waiting) const {
  int least_priority = 0;
  const auto begin = [](Request* request) {
    TenantShare& share = request->claim().share();
    share.count = share.admitted = 0;
    share.blocked = false;
  };
  for (const auto* requests : admitted) std::for_each(requests->begin(), requests->end(), begin);
  for (Request* request : *waiting) {
    begin(request);
    const TenantPtr& tenant = request->claim().share().tenant;
    if (tenant != nullptr) least_priority = std::min(least_priority, tenant->priority);
  }
  for (const auto* requests : admitted) {
    for (Request* request : *requests) {
      TenantShare& share = request->claim().share();
      share.count = ++share.admitted;
    }
  }
  // In place.
  waiting->sort([](Request* a, Request* b) {
    const Claim& one = a->claim();
    const Claim& other = b->claim();
    return one.rank() != other.rank() ? one.rank() < other.rank() : one.order < other.order;
  });
  for (Request* request : *waiting) {
    Claim& claim = request->claim();
    TenantShare& share = claim.share();
    claim.handicap = Handicap(claim, least_priority) + (claim.late ? kLast : 0);
    claim.turn = ++share.count / share.weight + claim.handicap;
  }
  waiting->sort([](Request* a, Request* b) {
    const Claim& one = a->claim();
    const Claim& other = b->claim();
    return one.turn != other.turn ? one.turn < other.turn : one.order < other.order;
  });
}

template <typename Request>
Request* FairShare::WhoGivesWay(Request* request, const std::list<Request*>& running) {
  if (request->claim().tenant == nullptr) return nullptr;
  TenantShare& own = request->claim().share();
  own.count = 0;
  for (Request* one : running) one->claim().share().count = 0;
  for (Request* one : running) ++one->claim().share().count;
  Request* gives_way = nullptr;
  double most = 0;
  for (Request* one : running) {
    const TenantShare& share = one->claim().share();
    const double places = share.count / share.weight;
    if (places < most || !HasTooMany(share, own)) continue;
    most = places;
    gives_way = one;
  }
  return gives_way;
}

}  // namespace folio
