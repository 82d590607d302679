#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/attention/attention_registry.h"
#include "engine/sched/tenant_account.h"

namespace folio {

// A request, document or stream that the cache has no room for.
struct KvShortage {
  std::string who;           // "the request", "document 'book' at token 100"
  int64_t needed_bytes = 0;  // all that it has to reserve
  // What documents keep until they are deleted; whatever else is reserved ends by itself.
  int64_t kept_bytes = 0;
  int64_t capacity_bytes = 0;
};
// Pure. ShortForNow (engine/base/short_for_now.h) if it fits beside the documents alone; else the
// message says what to delete or change.
absl::Status NoRoomInCache(const KvShortage& shortage, const AttentionModel& model);

// In front of the name of a bound that is one of the tenant alone, in kLimitPayload.
inline constexpr char kTenantLimit[] = "tenant.";

// RESOURCE_EXHAUSTED for a bound that is reached, in all or of one tenant, with kLimitPayload:
// `limit` is one of its names.
absl::Status LimitReached(const char* limit, LimitOf of, const std::string& message);

// Whether a status says that a bound of the tenant is reached.
bool IsLimitOfTenant(const absl::Status& status);
// Of TenantLimits::max_kv_bytes, which is `most_bytes`.
absl::Status NoRoomForTenant(const KvShortage& shortage, int64_t most_bytes);

}  // namespace folio
