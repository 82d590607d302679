#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace folio {

// What one tenant may have at a time. 0: no bound but those of the server.
struct TenantLimits {
  int max_queued_requests = 0;
  int max_running_requests = 0;
  // Tokens of prompts that wait or are being prefilled, without what is in the cache already.
  int64_t max_queued_prefill_tokens = 0;
  // Reserved in the KV cache by its requests and documents together.
  int64_t max_kv_bytes = 0;
  int max_documents = 0;
  // Of its documents, those whose text has not come to its end.
  int max_unfinished_uploads = 0;
  // Of its stored documents (--kv-dir).
  int64_t max_stored_bytes = 0;
};

// On whose account work is done: what the engine shares its steps, queue and cache out by. Without
// authentication each address of a client is a tenant.
struct Tenant {
  // Unique; no part of any answer but its own.
  std::string name;
  // Its share of the work while others wait, in proportion to theirs. Above 0.
  double weight = 1;
  // Tenants of lower ones run sooner when they come, -100 to 100: a head start, or the contrary, of
  // bounded work (FairShare). Their share stays that of their weight.
  int priority = 0;
  TenantLimits limits = {};
};

// Null: nobody's; such work is a tenant's of its own.
using TenantPtr = std::shared_ptr<const Tenant>;

// Who pays for work that is no request.
struct Payer {
  TenantPtr tenant;
  // Among the work of the tenant: lower ones run sooner, -100 to 100.
  int priority = 0;
};

}  // namespace folio
