#include "server/auth/tenant_calls.h"

#include "absl/strings/str_cat.h"
#include "engine/runtime/shortage.h"

namespace folio::server {

void TenantCalls::SetLimits(const CallLimits& limits) {
  const int64_t bytes = limits.max_request_memory_bytes;
  memory_.SetLimit(bytes == 0 ? kNoLimit : bytes);
  MutexLock lock(&mu_);
  limits_ = limits;
  requests_.SetLimit(limits.requests_per_minute);
  tokens_.SetLimit(limits.tokens_per_minute);
}

absl::StatusOr<TenantCalls::OpenCall> TenantCalls::Open(const std::string& connection) {
  MutexLock lock(&mu_);
  if (limits_.max_open_calls > 0 && open_calls_ >= limits_.max_open_calls) {
    return LimitReached(kOpenCalls, LimitOf::kTenant,
                        absl::StrCat("the tenant has its limit of ", limits_.max_open_calls,
                                     " calls open; try again when one has ended"));
  }
  const auto place = connections_.find(connection);
  const bool is_new = place == connections_.end();
  if (is_new && limits_.max_connections > 0 &&
      connections_.size() >= static_cast<size_t>(limits_.max_connections)) {
    return LimitReached(
        kConnections, LimitOf::kTenant,
        absl::StrCat("the tenant has calls open over its limit of ", limits_.max_connections,
                     " connections; make calls over one of them"));
  }
  OpenCall call(nullptr, connection);
  if (is_new) {
    connections_.emplace(connection, 1);
  } else {
    ++place->second;
  }
  ++open_calls_;
  call.calls_ = this;
  return call;
}

void TenantCalls::Close(const std::string& connection) {
  MutexLock lock(&mu_);
  --open_calls_;
  const auto place = connections_.find(connection);
  if (--place->second == 0) connections_.erase(place);
}

std::optional<TenantCalls::Wait> TenantCalls::TakeRequests(int64_t requests, int64_t tokens,
                                                           SteadyTime now) {
  MutexLock lock(&mu_);
  if (const auto wait = requests_.Wait(now); wait.count() > 0) {
    return Wait{kRequestsPerMinute, "requests", limits_.requests_per_minute, wait};
  }
  if (const auto wait = tokens_.Wait(now); wait.count() > 0) {
    return Wait{kTokensPerMinute, "tokens", limits_.tokens_per_minute, wait};
  }
  requests_.Take(requests, now);
  tokens_.Take(tokens, now);
  return std::nullopt;
}

void TenantCalls::TakeTokens(int64_t count, SteadyTime now) {
  MutexLock lock(&mu_);
  tokens_.Take(count, now);
}

}  // namespace folio::server
