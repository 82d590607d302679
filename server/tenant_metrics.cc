#include "server/tenant_metrics.h"

#include <string_view>
#include <utility>

namespace folio::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void Add(MetricFamily* family, const std::string& tenant, const char* label,
         const std::string& value, double number) {
  ClientMetric metric;
  metric.label.push_back({"tenant", tenant});
  if (label != nullptr) metric.label.push_back({label, value});
  metric.gauge.value = metric.counter.value = number;
  family->metric.push_back(std::move(metric));
}

void Add(MetricFamily* family, const std::string& tenant, double number) {
  Add(family, tenant, nullptr, "", number);
}

// For lack of room, time or readiness.
bool IsRejection(const RpcRecord& call) {
  const std::string_view code = call.code;
  return !call.reason.empty() && (code == "RESOURCE_EXHAUSTED" || code == "UNAVAILABLE" ||
                                  call.reason == "DEADLINE_TOO_SOON");
}

}  // namespace

void TenantMetrics::SetTenants(std::set<std::string> names) {
  MutexLock lock(&mu_);
  std::erase_if(accounts_, [&names](const auto& account) {
    return account.first != kOthers && !names.contains(account.first);
  });
  tenants_ = std::move(names);
  if (tenants_.size() > kMaxTenants) return;
  // A counter that begins at 0 shows its first event as a rate.
  for (const std::string& name : tenants_) accounts_[name];
}

TenantMetrics::Account* TenantMetrics::AccountOf(const std::string& tenant) {
  if (!tenants_.contains(tenant)) return nullptr;
  const auto known = accounts_.find(tenant);
  if (known != accounts_.end()) return &known->second;
  const size_t others = accounts_.contains(kOthers) ? 1 : 0;
  return &accounts_[accounts_.size() - others < kMaxTenants ? tenant : kOthers];
}

void TenantMetrics::OnCall(const RpcRecord& call) {
  MutexLock lock(&mu_);
  Account* const account = AccountOf(call.tenant);
  if (account == nullptr) return;
  ++account->calls_by_code[call.code];
  if (IsRejection(call)) ++account->rejected_by_reason[call.reason];
  if (!call.work.has_value()) return;
  account->prompt_tokens += call.work->computed_tokens;
  account->completion_tokens += call.work->completion_tokens;
  account->queue_seconds += call.work->queue_seconds;
}

std::vector<MetricFamily> TenantMetrics::Collect(const std::vector<TenantUse>& uses) {
  MetricFamily calls =
      Family("folio_tenant_requests_total", "Finished calls of a tenant.", MetricType::Counter);
  MetricFamily rejected = Family("folio_tenant_requests_rejected_total",
                                 "Of them those that were refused for lack of room, time or "
                                 "readiness, by the reason that the client got.",
                                 MetricType::Counter);
  MetricFamily tokens =
      Family("folio_tenant_tokens_total",
             "Tokens of finished calls: of prompts, as far as they were computed, and of answers.",
             MetricType::Counter);
  MetricFamily queue =
      Family("folio_tenant_queue_seconds_total",
             "Time that finished calls have waited for admission.", MetricType::Counter);
  MetricFamily kv =
      Family("folio_tenant_kv_bytes", "Reserved in the KV cache by requests and documents.",
             MetricType::Gauge);
  MetricFamily documents = Family("folio_tenant_documents", "Documents held.", MetricType::Gauge);
  MutexLock lock(&mu_);
  for (auto& [tenant, account] : accounts_) account.kv_bytes = account.documents = 0;
  for (const TenantUse& use : uses) {
    Account* const account = AccountOf(use.tenant);
    if (account == nullptr) continue;
    account->kv_bytes += use.kv_bytes;
    account->documents += use.documents;
  }
  for (const auto& [tenant, account] : accounts_) {
    for (const auto& [code, count] : account.calls_by_code) {
      Add(&calls, tenant, "grpc_code", code, static_cast<double>(count));
    }
    for (const auto& [reason, count] : account.rejected_by_reason) {
      Add(&rejected, tenant, "reason", reason, static_cast<double>(count));
    }
    Add(&tokens, tenant, "kind", "prompt", static_cast<double>(account.prompt_tokens));
    Add(&tokens, tenant, "kind", "completion", static_cast<double>(account.completion_tokens));
    Add(&queue, tenant, account.queue_seconds);
    Add(&kv, tenant, static_cast<double>(account.kv_bytes));
    Add(&documents, tenant, account.documents);
  }
  return {std::move(calls), std::move(rejected), std::move(tokens),
          std::move(queue), std::move(kv),       std::move(documents)};
}

}  // namespace folio::server
