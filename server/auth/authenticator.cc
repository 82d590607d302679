#include "server/auth/authenticator.h"

#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"
#include "server/client_of.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr std::string_view kBearer = "Bearer ";
// A call that is open ends when it does.
constexpr std::chrono::milliseconds kOpenCallRetry{1000};

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

// nullopt: it is no such header.
std::optional<std::string_view> TokenIn(std::string_view header) {
  const std::string scheme(header.substr(0, kBearer.size()));
  if (!absl::EqualsIgnoreCase(scheme, std::string(kBearer))) return std::nullopt;
  return header.substr(kBearer.size());
}

}  // namespace

absl::Status Authenticator::Load(const std::string& path) {
  MutexLock file(&file_mu_);
  path_ = path;
  seen_.emplace(std::vector<std::string>{path});
  FOLIO_ASSIGN_OR_RETURN(auto read, TenantDirectory::Read(path));
  Use(std::move(read));
  return absl::OkStatus();
}

std::set<std::string> Authenticator::tenant_names() const {
  const auto tenants = this->tenants();
  return tenants == nullptr ? std::set<std::string>() : tenants->names();
}

std::optional<absl::Status> Authenticator::Look() {
  MutexLock file(&file_mu_);
  if (!seen_.has_value() || !seen_->Changed()) return std::nullopt;
  auto read = TenantDirectory::Read(path_);
  if (!read.ok()) return read.status();
  Use(*std::move(read));
  return absl::OkStatus();
}

void Authenticator::Use(Directory tenants) {
  MutexLock lock(&mu_);
  for (const auto& [name, known] : tenants->tenants()) {
    std::unique_ptr<TenantCalls>& calls = calls_[name];
    if (calls == nullptr) calls = std::make_unique<TenantCalls>(memory_);
    calls->SetLimits(known.calls);
  }
  tenants_ = std::move(tenants);
}

Authenticator::Directory Authenticator::tenants() const {
  MutexLock lock(&mu_);
  return tenants_;
}

TenantCalls* Authenticator::CallsOf(const std::string& tenant) {
  MutexLock lock(&mu_);
  return calls_.at(tenant).get();
}

const KnownTenant* Authenticator::Identify(const grpc::ServerContextBase& rpc,
                                           const TenantDirectory& tenants, const char** why) const {
  if (!Has(rpc, "authorization")) {
    *why =
        "this server wants to know who calls: send the metadata 'authorization: Bearer TOKEN', "
        "or use a client certificate that it knows";
    const auto connection = ConnectionOf(rpc.peer());
    return connection.has_value() ? tenants.OfCertificate(peer_names_->Of(*connection)) : nullptr;
  }
  const auto header = OnlyOf(rpc, "authorization");
  const auto token = header.has_value() ? TokenIn(*header) : std::nullopt;
  *why = token.has_value() ? "the bearer token is not known"
                           : "the metadata 'authorization' must be one 'Bearer TOKEN'";
  return token.has_value() ? tenants.OfToken(*token) : nullptr;
}

grpc::Status Authenticator::Authenticate(const grpc::ServerContextBase& rpc, Caller* caller) {
  const std::string peer = rpc.peer();
  caller->address = ClientOf(peer);
  const Directory tenants = this->tenants();
  if (tenants == nullptr) {
    caller->tenant = AddressTenant(caller->address);
    caller->calls = &nobody_;
    return grpc::Status::OK;
  }
  const char* why = "";
  const KnownTenant* known = Identify(rpc, *tenants, &why);
  if (known == nullptr) return Unauthenticated(why);
  caller->is_admin = known->is_admin;
  caller->identity = known->tenant->name;
  if (Has(rpc, "x-tenant-id")) {
    const std::string name = OnlyOf(rpc, "x-tenant-id").value_or("");
    const bool may = known->is_admin || name == known->tenant->name;
    known = may ? tenants->Named(name) : nullptr;
    if (known == nullptr) {
      return ToGrpcStatus(
          absl::PermissionDeniedError("the metadata 'x-tenant-id' names a tenant in whose name "
                                      "this caller may not act"),
          {"NOT_THE_TENANT", {}, {}});
    }
  }
  caller->tenant = known->tenant;
  caller->owner = known->tenant->name;
  caller->calls = CallsOf(caller->owner);
  auto open = caller->calls->Open(peer);
  if (!open.ok()) return ToGrpcStatus(open.status(), {"TOO_MANY_CALLS", {}, kOpenCallRetry});
  caller->open = *std::move(open);
  return grpc::Status::OK;
}

bool Authenticator::MayReadMetrics(std::string_view authorization) const {
  const Directory tenants = this->tenants();
  const auto token = TokenIn(authorization);
  if (tenants == nullptr || !token.has_value()) return false;
  const KnownTenant* const known = tenants->OfToken(*token);
  return known != nullptr && (known->is_admin || known->reads_metrics);
}

}  // namespace folio::server
