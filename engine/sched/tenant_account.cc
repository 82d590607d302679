#include "engine/sched/tenant_account.h"

#include <atomic>
#include <vector>

#include "engine/types/request.h"

namespace folio {
namespace {

bool IsBeyond(int64_t bound, int64_t held, int64_t more) {
  return bound > 0 && held > 0 && more > bound - held;
}

// The bound that a request would be beyond; null: none.
const char* FirstBoundOver(const QueueLoad& bounds, const QueueLoad& held, const QueueLoad& more) {
  if (IsBeyond(bounds.requests, held.requests, more.requests)) return kQueuedRequests;
  if (IsBeyond(bounds.prefill_tokens, held.prefill_tokens, more.prefill_tokens)) {
    return kQueuedPrefillTokens;
  }
  return IsBeyond(bounds.kv_bytes, held.kv_bytes, more.kv_bytes) ? kQueuedKvBytes : nullptr;
}

}  // namespace

QueueLoad& QueueLoad::operator+=(const QueueLoad& other) {
  requests += other.requests;
  prefill_tokens += other.prefill_tokens;
  kv_bytes += other.kv_bytes;
  return *this;
}

QueueLoad& QueueLoad::operator-=(const QueueLoad& other) {
  requests -= other.requests;
  prefill_tokens -= other.prefill_tokens;
  kv_bytes -= other.kv_bytes;
  return *this;
}

TenantAccounts::Account TenantAccounts::Open(const TenantPtr& tenant) {
  if (tenant == nullptr) return std::make_shared<TenantAccount>();
  // Outside of the lock, which its end takes.
  Account made(new TenantAccount, [this, name = tenant->name](TenantAccount* last) {
    delete last;
    Forget(name);
  });
  MutexLock lock(&mu_);
  std::weak_ptr<TenantAccount>& known = accounts_[tenant->name];
  if (Account account = known.lock()) return account;
  known = made;
  return made;
}

void TenantAccounts::Forget(const std::string& name) {
  MutexLock lock(&mu_);
  const auto it = accounts_.find(name);
  // Another may have been opened meanwhile.
  if (it != accounts_.end() && it->second.expired()) accounts_.erase(it);
}

const char* TenantAccounts::WhatIsFull(const QueueLoad& held, const QueueLoad& more,
                                       const Bounds& bounds, LimitOf* of) const {
  *of = LimitOf::kAll;
  if (const char* full = FirstBoundOver(bounds.of_all, load_, more)) return full;
  *of = LimitOf::kTenant;
  return FirstBoundOver(bounds.of_tenant, held, more);
}

const char* TenantAccounts::WhatIsFull(const TenantPtr& tenant, const QueueLoad& load,
                                       const Bounds& bounds, LimitOf* of) const {
  Account held;  // the last holder of one takes the lock
  MutexLock lock(&mu_);
  if (tenant != nullptr) {
    const auto it = accounts_.find(tenant->name);
    if (it != accounts_.end()) held = it->second.lock();
  }
  return WhatIsFull(held == nullptr ? QueueLoad{} : held->load, load, bounds, of);
}

const char* TenantAccounts::Join(Account account, const QueueLoad& load, const Bounds& bounds,
                                 Ticket* ticket, LimitOf* of) {
  MutexLock lock(&mu_);
  if (const char* full = WhatIsFull(account->load, load, bounds, of)) return full;
  load_ += load;
  account->load += load;
  ticket->accounts_ = this;
  ticket->account_ = std::move(account);
  ticket->load_ = load;
  return nullptr;
}

QueueLoad TenantAccounts::load() const {
  MutexLock lock(&mu_);
  return load_;
}

std::map<std::string, int64_t> TenantAccounts::KvBytes() const {
  std::map<std::string, int64_t> bytes;
  std::vector<Account> held;  // the last holder of one takes the lock
  MutexLock lock(&mu_);
  held.reserve(accounts_.size());
  for (const auto& [name, known] : accounts_) {
    held.push_back(known.lock());
    if (held.back() == nullptr) continue;
    const std::atomic_ref reserved(held.back()->share.reserved_bytes);
    bytes.emplace(name, reserved.load(std::memory_order_relaxed));
  }
  return bytes;
}

TenantAccounts::Ticket& TenantAccounts::Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  Leave(load_);
  accounts_ = std::exchange(other.accounts_, nullptr);
  account_ = std::move(other.account_);
  load_ = std::exchange(other.load_, {});
  return *this;
}

void TenantAccounts::Ticket::Leave(const QueueLoad& part) {
  const bool has_any = part.requests > 0 || part.prefill_tokens > 0 || part.kv_bytes > 0;
  if (accounts_ == nullptr || !has_any) return;
  MutexLock lock(&accounts_->mu_);
  accounts_->load_ -= part;
  account_->load -= part;
  load_ -= part;
}

}  // namespace folio
