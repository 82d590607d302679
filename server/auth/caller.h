#pragma once

#include <string>

#include "engine/types/tenant.h"
#include "server/auth/tenant_calls.h"

namespace folio::server {

// Who makes a call, as far as it was found out. Without --tenants nobody is: each address is a
// tenant of its own account, documents are everybody's and everybody is an administrator.
struct Caller {
  TenantPtr tenant;  // whose account pays; not null
  // In front of the names of its documents (DocumentIdOf); empty without --tenants.
  std::string owner;
  // Who it is: the owner, or the administrator that acts in its name.
  std::string identity;
  bool is_admin = true;
  std::string address;
  // What the tenant's calls have, and this one's place among them; not null.
  TenantCalls* calls = nullptr;
  TenantCalls::OpenCall open;
};

}  // namespace folio::server
