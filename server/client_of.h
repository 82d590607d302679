#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/types/tenant.h"

namespace folio::server {

// Who has sent a call, as far as turns and shares go: the address of the connection without its
// port, of gRPC's name for a peer (grpc::ServerContextBase::peer). Behind a proxy all have its
// address.
std::string ClientOf(const std::string& peer);

// The number of the connection in Edge; nullopt: it did not come through it.
std::optional<uint64_t> ConnectionOf(const std::string& peer);

// Where the server knows no tenants each client is one.
TenantPtr AddressTenant(const std::string& client);

}  // namespace folio::server
