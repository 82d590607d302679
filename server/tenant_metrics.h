#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "server/logging.h"

namespace folio::server {

// What each tenant of --tenants has asked for and has: kMaxTenants of them, where there are more
// those that called first, the others as one. Addresses are no tenants. The series of a tenant that
// is taken out of the file go with it. Thread-safe.
class TenantMetrics {
 public:
  static constexpr size_t kMaxTenants = 100;
  // No name of a tenant.
  static constexpr char kOthers[] = "(others)";

  // Those that there are from now on.
  void SetTenants(std::set<std::string> names);

  // A call has ended. Ignored if it is no tenant's.
  void OnCall(const RpcRecord& call);

  // `uses`: of the engine, which is not asked while calls wait.
  std::vector<prometheus::MetricFamily> Collect(const std::vector<TenantUse>& uses);

 private:
  struct Account {
    std::map<std::string, int64_t> calls_by_code;
    std::map<std::string, int64_t> rejected_by_reason;
    int64_t prompt_tokens = 0;  // that were computed
    int64_t completion_tokens = 0;
    double queue_seconds = 0;
    int64_t kv_bytes = 0;
    int documents = 0;
  };
  // That of a tenant or of the others; null: there is no such tenant.
  Account* AccountOf(const std::string& tenant) FOLIO_REQUIRES(mu_);

  Mutex mu_;
  std::set<std::string> tenants_ FOLIO_GUARDED_BY(mu_);
  std::map<std::string, Account> accounts_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
