#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/auth/minute_rate.h"
#include "server/clock.h"
#include "server/memory_budget.h"

namespace folio::server {

// What the calls of one tenant may have at a time, and what they may ask for in a minute; beside
// TenantLimits, which are the engine's. 0: no bound but those of the server.
struct CallLimits {
  int max_open_calls = 0;
  // That its open calls come over.
  int max_connections = 0;
  // Of messages and the tokens made of them.
  int64_t max_request_memory_bytes = 0;
  // Each question and answer of a call, each upload and each scored text is one.
  int64_t requests_per_minute = 0;
  // Of prompts, uploads and scored texts, and of answers.
  int64_t tokens_per_minute = 0;
};

// Names of these bounds in google.rpc.QuotaFailure.
inline constexpr char kOpenCalls[] = "open_calls";
inline constexpr char kConnections[] = "connections";
inline constexpr char kRequestMemoryBytes[] = "request_memory_bytes";
inline constexpr char kRequestsPerMinute[] = "requests_per_minute";
inline constexpr char kTokensPerMinute[] = "tokens_per_minute";

// What the calls of one tenant have at the moment. Outlives them. Thread-safe.
class TenantCalls {
 public:
  // Memory comes from `all` as well, which outlives it.
  explicit TenantCalls(MemoryBudget* all) : memory_(kNoLimit, all) {}

  // From now on; what is more than that by now ends by itself.
  void SetLimits(const CallLimits& limits);

  // One call that has not ended.
  class OpenCall {
   public:
    OpenCall() = default;
    OpenCall(OpenCall&& other) noexcept
        : calls_(std::exchange(other.calls_, nullptr)), connection_(std::move(other.connection_)) {}
    OpenCall& operator=(OpenCall&& other) noexcept {
      std::swap(calls_, other.calls_);
      std::swap(connection_, other.connection_);
      return *this;
    }
    ~OpenCall() {
      if (calls_ != nullptr) calls_->Close(connection_);
    }

   private:
    friend class TenantCalls;
    OpenCall(TenantCalls* calls, std::string connection)
        : calls_(calls), connection_(std::move(connection)) {}

    TenantCalls* calls_ = nullptr;
    std::string connection_;
  };
  // `connection` is gRPC's name for its peer. RESOURCE_EXHAUSTED with kLimitPayload.
  absl::StatusOr<OpenCall> Open(const std::string& connection);

  // A share of the server's for requests, within the bound of the tenant.
  MemoryBudget& memory() { return memory_; }

  // Takes so many requests with so many tokens of prompts from the rates; if they have to wait,
  // takes nothing and says for which one.
  struct Wait {
    const char* limit = "";
    const char* what = "";  // for messages
    int64_t per_minute = 0;
    std::chrono::milliseconds time{};
  };
  std::optional<Wait> TakeRequests(int64_t requests, int64_t tokens, SteadyTime now);
  // Tokens that come with the work.
  void TakeTokens(int64_t count, SteadyTime now);

 private:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  void Close(const std::string& connection);

  MemoryBudget memory_;
  Mutex mu_;
  CallLimits limits_ FOLIO_GUARDED_BY(mu_);
  int open_calls_ FOLIO_GUARDED_BY(mu_) = 0;
  std::map<std::string, int> connections_ FOLIO_GUARDED_BY(mu_);  // to its open calls
  MinuteRate requests_ FOLIO_GUARDED_BY(mu_);
  MinuteRate tokens_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
