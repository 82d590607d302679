#include "server/auth/authenticator.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"
#include "server/client_of.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr char kBearer[] = "Bearer ";

grpc::Status Unauthenticated(const char* why) {
  return ToGrpcStatus(absl::UnauthenticatedError(why), {"UNAUTHENTICATED", {}, {}});
}

// nullopt: there is none, or more than one.
std::optional<std::string> OnlyOf(const grpc::ServerContextBase& rpc, const char* key) {
  const auto [begin, end] = rpc.client_metadata().equal_range(key);
  if (begin == end || std::next(begin) != end) return std::nullopt;
  return std::string(begin->second.data(), begin->second.size());
}

bool Has(const grpc::ServerContextBase& rpc, const char* key) {
  return rpc.client_metadata().count(key) > 0;
}

}  // namespace

absl::Status Authenticator::Load(const std::string& path) {
  path_ = path;
  seen_.emplace(std::vector<std::string>{path});
  FOLIO_ASSIGN_OR_RETURN(auto read, TenantDirectory::Read(path));
  MutexLock lock(&mu_);
  tenants_ = std::move(read);
  return absl::OkStatus();
}

std::set<std::string> Authenticator::tenant_names() const {
  const auto tenants = this->tenants();
  return tenants == nullptr ? std::set<std::string>() : tenants->names();
}

std::optional<absl::Status> Authenticator::Look() {
  if (!seen_.has_value() || !seen_->Changed()) return std::nullopt;
  auto read = TenantDirectory::Read(path_);
  if (!read.ok()) return read.status();
  MutexLock lock(&mu_);
  tenants_ = *std::move(read);
  return absl::OkStatus();
}

std::shared_ptr<const TenantDirectory> Authenticator::tenants() const {
  MutexLock lock(&mu_);
  return tenants_;
}

grpc::Status Authenticator::Authenticate(const grpc::ServerContextBase& rpc, Caller* caller) const {
  const std::string peer = rpc.peer();
  caller->address = ClientOf(peer);
  const auto tenants = this->tenants();
  if (tenants == nullptr) {
    caller->tenant = AddressTenant(caller->address);
    return grpc::Status::OK;
  }
  const KnownTenant* known = nullptr;
  if (Has(rpc, "authorization")) {
    const auto header = OnlyOf(rpc, "authorization");
    if (!header.has_value() || !absl::StartsWithIgnoreCase(header->c_str(), kBearer)) {
      return Unauthenticated("the metadata 'authorization' must be one 'Bearer TOKEN'");
    }
    known = tenants->OfToken(header->substr(sizeof(kBearer) - 1));
    if (known == nullptr) return Unauthenticated("the bearer token is not known");
  } else {
    const auto connection = ConnectionOf(peer);
    if (connection.has_value()) known = tenants->OfCertificate(peer_names_->Of(*connection));
    if (known == nullptr) {
      return Unauthenticated(
          "this server wants to know who calls: send the metadata 'authorization: Bearer TOKEN', "
          "or use a client certificate that it knows");
    }
  }
  caller->is_admin = known->is_admin;
  if (Has(rpc, "x-tenant-id")) {
    const std::string name = OnlyOf(rpc, "x-tenant-id").value_or("");
    if (name != known->tenant->name) {
      const KnownTenant* const other = known->is_admin ? tenants->Named(name) : nullptr;
      if (other == nullptr) {
        return ToGrpcStatus(
            absl::PermissionDeniedError("the metadata 'x-tenant-id' names a tenant in whose name "
                                        "this caller may not act"),
            {"NOT_THE_TENANT", {}, {}});
      }
      known = other;
    }
  }
  caller->tenant = known->tenant;
  caller->owner = known->tenant->name;
  return grpc::Status::OK;
}

}  // namespace folio::server
