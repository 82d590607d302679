#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "engine/base/mutex.h"
#include "server/auth/caller.h"
#include "server/auth/tenant_calls.h"
#include "server/auth/tenant_directory.h"
#include "server/edge/file_stamp.h"
#include "server/edge/peer_names.h"

namespace folio::server {

// Finds out who calls: by the bearer token of the metadata `authorization`, else by the certificate
// that the connection has shown. An administrator calls in the name of another tenant with the
// metadata `x-tenant-id`. Thread-safe.
class Authenticator {
 public:
  // Without a file everybody may do everything. Both outlive it: the names of connections, and the
  // memory that all requests share.
  Authenticator(const PeerNames* peer_names, MemoryBudget* memory)
      : peer_names_(peer_names), memory_(memory) {}

  // From now on only those that the file knows, which is read now. Errors: as
  // TenantDirectory::Read.
  absl::Status Load(const std::string& path);

  // UNAUTHENTICATED; PERMISSION_DENIED for a tenant that is not the caller's; RESOURCE_EXHAUSTED
  // for a tenant with as many calls or connections as it may have.
  grpc::Status Authenticate(const grpc::ServerContextBase& rpc, Caller* caller);

  // Whether the value of an HTTP header `authorization` is that of one who may read the metrics.
  bool MayReadMetrics(std::string_view authorization) const;

  // Those that the file has; none without one.
  std::set<std::string> tenant_names() const;

  // Reads the file again if it has changed. nullopt: it has not; not OK: what is wrong with it, and
  // the tenants stay as they are.
  std::optional<absl::Status> Look();

 private:
  using Directory = std::shared_ptr<const TenantDirectory>;

  Directory tenants() const;
  void Use(Directory tenants);
  // What shows who calls; null: `why` says what is wrong with it.
  const KnownTenant* Identify(const grpc::ServerContextBase& rpc, const TenantDirectory& tenants,
                              const char** why) const;
  TenantCalls* CallsOf(const std::string& tenant);

  const PeerNames* const peer_names_;
  MemoryBudget* const memory_;
  TenantCalls nobody_{memory_};
  // Of whoever reads the file, which takes a while.
  Mutex file_mu_;
  std::string path_ FOLIO_GUARDED_BY(file_mu_);
  std::optional<FileStamps> seen_ FOLIO_GUARDED_BY(file_mu_);
  mutable Mutex mu_;
  Directory tenants_ FOLIO_GUARDED_BY(mu_);
  // Of all that ever were in the file: calls of tenants that are no more may still run.
  std::map<std::string, std::unique_ptr<TenantCalls>> calls_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
