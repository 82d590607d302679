#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/base/mutex.h"
#include "server/auth/caller.h"
#include "server/auth/tenant_directory.h"
#include "server/edge/file_stamp.h"
#include "server/edge/peer_names.h"

namespace folio::server {

// Finds out who calls: by the bearer token of the metadata `authorization`, else by the certificate
// that the connection has shown. An administrator calls in the name of another tenant with the
// metadata `x-tenant-id`. Thread-safe.
class Authenticator {
 public:
  // Without a file everybody may do everything. `peer_names` outlives it.
  explicit Authenticator(const PeerNames* peer_names) : peer_names_(peer_names) {}

  // From now on only those that the file knows, which is read now. Errors: as
  // TenantDirectory::Read.
  absl::Status Load(const std::string& path);

  // UNAUTHENTICATED; PERMISSION_DENIED for a tenant that is not the caller's.
  grpc::Status Authenticate(const grpc::ServerContextBase& rpc, Caller* caller) const;

  // Those that the file has; none without one.
  std::set<std::string> tenant_names() const;

  // Reads the file again if it has changed. nullopt: it has not; not OK: what is wrong with it, and
  // the tenants stay as they are. Not to be called by two threads at once.
  std::optional<absl::Status> Look();

 private:
  std::shared_ptr<const TenantDirectory> tenants() const;

  std::string path_;
  std::optional<FileStamps> seen_;
  const PeerNames* const peer_names_;
  mutable Mutex mu_;
  std::shared_ptr<const TenantDirectory> tenants_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
