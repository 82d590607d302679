#include "server/call_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "server/status_mapping.h"

namespace folio::server {
namespace {

// No names of tenants or addresses.
constexpr char kFaults[] = "(faults)";
constexpr char kOthers[] = "(others)";

}  // namespace

void CallLog::Refill(Allowance* allowance, SteadyTime now) const {
  const std::chrono::duration<double> passed = now - std::exchange(allowance->seen, now);
  allowance->lines = std::min(burst(), allowance->lines + passed.count() * lines_per_second_);
}

bool CallLog::Take(const std::string& client, SteadyTime now) {
  MutexLock lock(&mu_);
  const bool has_own = clients_.size() < kMaxClients || clients_.contains(client);
  const auto [it, is_new] = clients_.try_emplace(has_own ? client : kOthers);
  Allowance& allowance = it->second;
  if (is_new) allowance = {burst(), now, 0};
  Refill(&allowance, now);
  if (allowance.lines < 1) {
    ++allowance.left_out;
    return false;
  }
  --allowance.lines;
  return true;
}

void CallLog::Write(const RpcRecord& call, SteadyTime now) {
  const std::string& whose = IsFault(call.code)    ? kFaults
                             : call.tenant.empty() ? call.address
                                                   : call.tenant;
  if (lines_per_second_ == 0 || Take(whose, now)) return LogRpc(call);
  num_left_out_.fetch_add(1, std::memory_order_relaxed);
}

void CallLog::Report(SteadyTime now) {
  std::vector<std::pair<std::string, int64_t>> left_out;
  {
    MutexLock lock(&mu_);
    if (now < next_report_) return;
    next_report_ = now + kReportEvery;
    for (auto& [client, allowance] : clients_) {
      Refill(&allowance, now);
      const int64_t count = std::exchange(allowance.left_out, 0);
      if (count > 0) left_out.emplace_back(client, count);
    }
    // One that has all of its allowance is like a new one.
    std::erase_if(clients_, [this](const auto& one) { return one.second.lines >= burst(); });
  }
  for (const auto& [client, count] : left_out) {
    spdlog::warn("{} calls of {} are not in the log, which has up to {} a second of each client",
                 count, client, lines_per_second_);
  }
}

}  // namespace folio::server
