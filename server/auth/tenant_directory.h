#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/types/tenant.h"
#include "server/auth/tenant_calls.h"

namespace folio::server {

// A tenant, and what shows that a call is its.
struct KnownTenant {
  TenantPtr tenant;
  CallLimits calls;
  bool is_admin = false;
  // Of the metrics port, with --metrics-tokens.
  bool reads_metrics = false;
};

// The tenants of a --tenants file. Does not change; thread-safe.
//
// The file is JSON; comments (// and /* */) are allowed:
//
//   {"tenants": {"acme": {"token_sha256": ["9f86..."], "certificates": ["spiffe://example/acme"],
//                         "admin": false, "weight": 2, "max_documents": 100}}}
//
// token_sha256: of bearer tokens, in hex. Tokens are random, not words, so that no salt is needed.
// certificates: names of client certificates (PeerNames). metrics: whether it reads the metrics
// port, as administrators do. weight, priority and the bounds are those of Tenant, TenantLimits and
// CallLimits.
class TenantDirectory {
 public:
  // Errors: INVALID_ARGUMENT naming file, tenant and key; NOT_FOUND.
  static absl::StatusOr<std::shared_ptr<const TenantDirectory>> Read(const std::string& path);
  // The same of the text of such a file.
  static absl::StatusOr<std::shared_ptr<const TenantDirectory>> Parse(const std::string& json);

  // Null: none. Looks at every token that there is, however early it finds one, so that the time it
  // takes tells nothing of them.
  const KnownTenant* OfToken(std::string_view token) const;
  // Of the first name that is known.
  const KnownTenant* OfCertificate(std::span<const std::string> names) const;
  const KnownTenant* Named(const std::string& name) const;
  const std::map<std::string, KnownTenant>& tenants() const { return tenants_; }
  size_t size() const { return tenants_.size(); }
  std::set<std::string> names() const;

 private:
  using Hash = std::array<uint8_t, 32>;
  struct Token {
    Hash hash;
    const KnownTenant* tenant;
  };
  friend class TenantParser;

  std::map<std::string, KnownTenant> tenants_;  // entries never move
  std::vector<Token> tokens_;
  std::map<std::string, const KnownTenant*> certificates_;
};

}  // namespace folio::server
