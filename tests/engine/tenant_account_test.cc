#include "engine/sched/tenant_account.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/types/request.h"

namespace folio {
namespace {

TenantPtr Named(const char* name) { return std::make_shared<Tenant>(Tenant{.name = name}); }

TEST(TenantAccounts, OneForEachTenantAsLongAsSomebodyHoldsIt) {
  TenantAccounts accounts;
  TenantAccounts::Account a = accounts.Open(Named("a"));
  a->share.served = 7;
  EXPECT_EQ(accounts.Open(Named("a")), a);
  EXPECT_NE(accounts.Open(Named("b")), a);
  EXPECT_NE(accounts.Open(nullptr), accounts.Open(nullptr));
  a.reset();
  EXPECT_EQ(accounts.Open(Named("a"))->share.served, 0);
}

class TenantQueue : public testing::Test {
 protected:
  // What is full, as in kLimitPayload; "" if nothing is.
  std::string Join(const TenantPtr& tenant, const QueueLoad& load,
                   const TenantAccounts::Bounds& bounds) {
    TenantAccounts::Ticket ticket;
    LimitOf of;
    const char* full = accounts_.Join(accounts_.Open(tenant), load, bounds, &ticket, &of);
    if (full != nullptr) return std::string(of == LimitOf::kTenant ? "tenant." : "") + full;
    tickets_.push_back(std::move(ticket));
    return "";
  }
  TenantAccounts accounts_;
  std::vector<TenantAccounts::Ticket> tickets_;
};

TEST_F(TenantQueue, ATenantHasNoMoreThanItsMost) {
  const TenantAccounts::Bounds bounds{.of_all = {}, .of_tenant = {.requests = 2}};
  EXPECT_EQ(Join(Named("a"), {.requests = 1}, bounds), "");
  EXPECT_EQ(Join(Named("a"), {.requests = 1}, bounds), "");
  EXPECT_EQ(Join(Named("a"), {.requests = 1}, bounds), "tenant.queued_requests");
  EXPECT_EQ(Join(Named("b"), {.requests = 1}, bounds), "");
  EXPECT_EQ(accounts_.load().requests, 3);
  tickets_.erase(tickets_.begin());
  EXPECT_EQ(Join(Named("a"), {.requests = 1}, bounds), "");
  tickets_.clear();
  EXPECT_EQ(accounts_.load().requests, 0);
}

TEST_F(TenantQueue, TokensCountUntilTheyAreInTheCacheAndBytesUntilItRuns) {
  const TenantAccounts::Bounds bounds{.of_all = {.prefill_tokens = 100, .kv_bytes = 1000},
                                      .of_tenant = {.prefill_tokens = 50}};
  EXPECT_EQ(Join(Named("a"), {1, 40, 600}, bounds), "");
  EXPECT_EQ(Join(Named("a"), {1, 11, 1}, bounds), "tenant.queued_prefill_tokens");
  EXPECT_EQ(Join(Named("b"), {1, 61, 1}, bounds), "queued_prefill_tokens");
  EXPECT_EQ(Join(Named("b"), {1, 10, 401}, bounds), "queued_kv_bytes");
  tickets_[0].Runs();
  EXPECT_EQ(Join(Named("b"), {1, 10, 401}, bounds), "");
  tickets_[0].IsInCache();
  tickets_[0].IsInCache();
  EXPECT_EQ(Join(Named("a"), {1, 50, 1}, bounds), "");
  EXPECT_EQ(accounts_.load().prefill_tokens, 60);
  EXPECT_EQ(accounts_.load().kv_bytes, 402);
}

TEST_F(TenantQueue, SaysWhatIsFullBeforeOneJoins) {
  const TenantAccounts::Bounds bounds{.of_all = {.prefill_tokens = 100},
                                      .of_tenant = {.requests = 1}};
  const auto full = [&](const TenantPtr& tenant) {
    LimitOf of;
    const char* what = accounts_.WhatIsFull(tenant, {.requests = 1}, bounds, &of);
    return std::string(what == nullptr ? "" : of == LimitOf::kTenant ? "of its tenant" : "of all");
  };
  EXPECT_EQ(full(Named("a")), "");
  EXPECT_EQ(Join(Named("a"), {.requests = 1}, bounds), "");
  EXPECT_EQ(full(Named("a")), "of its tenant");
  EXPECT_EQ(full(Named("b")), "");
  EXPECT_EQ(full(nullptr), "");
  EXPECT_EQ(accounts_.load().requests, 1);
  // Alone with the bound it may be larger; then there is no room for the shortest.
  EXPECT_EQ(Join(Named("b"), {.requests = 1, .prefill_tokens = 101}, bounds), "");
  EXPECT_EQ(full(Named("c")), "of all");
}

TEST_F(TenantQueue, WhatIsLargerThanABoundMayBeThereAlone) {
  const TenantAccounts::Bounds bounds{.of_all = {.prefill_tokens = 100}, .of_tenant = {}};
  EXPECT_EQ(Join(nullptr, {.prefill_tokens = 1000}, bounds), "");
  EXPECT_EQ(Join(nullptr, {.prefill_tokens = 1}, bounds), "queued_prefill_tokens");
}

}  // namespace
}  // namespace folio
