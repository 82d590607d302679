#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/sched/fair_share.h"
#include "engine/types/tenant.h"

namespace folio {

// Whose bound is reached.
enum class LimitOf : uint8_t { kAll, kTenant };

// What requests keep others from, while they are in the queue.
struct QueueLoad {
  int64_t requests = 0;        // until they end
  int64_t prefill_tokens = 0;  // until they are in the cache
  int64_t kv_bytes = 0;        // until they run

  QueueLoad& operator+=(const QueueLoad& other);
  QueueLoad& operator-=(const QueueLoad& other);
};

// All work of one tenant.
struct TenantAccount {
  TenantShare share;  // engine thread only
  QueueLoad load;     // of TenantAccounts
};

// One account for each tenant that has any work, and what waits in all. Outlives its tickets.
// Thread-safe.
class TenantAccounts {
 public:
  using Account = std::shared_ptr<TenantAccount>;

  // That of a tenant, the same for all who hold it; of null a new one.
  Account Open(const TenantPtr& tenant);

  // One request in the queue, from its submission to its end.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Leave(load_); }

    TenantAccount* account() const { return account_.get(); }
    void Runs() { Leave({.kv_bytes = load_.kv_bytes}); }
    void IsInCache() { Leave({.prefill_tokens = load_.prefill_tokens}); }

   private:
    friend class TenantAccounts;
    void Leave(const QueueLoad& part);

    TenantAccounts* accounts_ = nullptr;
    Account account_;
    QueueLoad load_;
  };

  // Bounds of a queue; 0: none. One request that is alone with a bound may exceed it.
  struct Bounds {
    QueueLoad of_all;
    QueueLoad of_tenant;
  };
  // Puts a request into the queue. Returns null, or what is full: one of the names of
  // kLimitPayload, and whose bound that is.
  const char* Join(Account account, const QueueLoad& load, const Bounds& bounds, Ticket* ticket,
                   LimitOf* of);

  // The same for one that would come now, which does not join.
  const char* WhatIsFull(const TenantPtr& tenant, const QueueLoad& load, const Bounds& bounds,
                         LimitOf* of) const;

  QueueLoad load() const;

  // What each tenant that has work or documents has reserved of the cache, by its name.
  std::map<std::string, int64_t> KvBytes() const;

 private:
  void Forget(const std::string& name);
  // `held`: of its tenant.
  const char* WhatIsFull(const QueueLoad& held, const QueueLoad& more, const Bounds& bounds,
                         LimitOf* of) const FOLIO_REQUIRES(mu_);

  mutable Mutex mu_;
  QueueLoad load_ FOLIO_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<TenantAccount>> accounts_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio
