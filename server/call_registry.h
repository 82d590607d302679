#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/types/request.h"
#include "server/clock.h"
#include "server/trace_context.h"

namespace folio::server {

class CallRegistry;

// Where a call is: its text is read, or its first answer that has not ended waits, is prefilled or
// is written.
enum class CallPhase : uint8_t { kReading, kQueued, kPrefill, kDecode };

// What is known of one call of Generate, AskMany, Score or UploadDocument while it runs, for
// operators, and at its end for the log. Owned by the call; listed as long as it lives.
// Thread-safe. What changes with every token is atomic, the rest under the mutex of the registry.
class RunningCall {
 public:
  struct Origin {
    const char* method = "";
    std::string client;
    std::string tenant;
    SteadyTime arrived{};
    TraceContext trace = {};
    // max(): none.
    std::chrono::system_clock::time_point deadline = std::chrono::system_clock::time_point::max();
    // Caller::identity.
    std::string identity = {};
  };
  // What the request says; empty until it is read.
  struct Subject {
    std::string request_id;
    std::string document_id;
    std::string strategy;
  };
  struct Tokens {
    int64_t prompt = 0;
    int64_t cached = 0;
    int64_t completion = 0;
    int64_t computed = 0;  // of the prompt, so far
    int64_t max_new = 0;   // of completion
  };

  ~RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  const Origin& origin() const { return origin_; }
  Subject subject() const;
  void SetRequestId(const std::string& id);
  // Of a long one the beginning, as logs have it: clients write ids as they like.
  void SetDocumentId(const std::string& id);
  void SetStrategy(const std::string& name);
  // What the engine calls a part of its work.
  void AddEngineRequest(RequestId id);

  // Phases come again where one of several answers is behind, or begins again; the first time of
  // each is kept.
  void EnterPhase(CallPhase phase, SteadyTime now);
  CallPhase phase() const { return phase_.load(std::memory_order_relaxed); }
  struct Time {
    SteadyTime begin{};
    SteadyTime end{};
  };
  // From the first time of `phase` to that of the next one that came, or to `now`; nullopt: it
  // never came.
  std::optional<Time> TimeOf(CallPhase phase, SteadyTime now) const;
  // The same in seconds, or 0.
  double SecondsIn(CallPhase phase, SteadyTime now) const;

  void AddPromptTokens(int64_t count) { Add(&prompt_tokens_, count); }
  void AddCachedTokens(int64_t count) { Add(&cached_tokens_, count); }
  void AddComputedTokens(int64_t count) { Add(&computed_tokens_, count); }
  void AddMaxNewTokens(int64_t count) { Add(&max_new_tokens_, count); }
  void AddCompletionTokens(int64_t count) { Add(&completion_tokens_, count); }
  // Engine steps that worked for it.
  void AddSteps(int64_t count) { Add(&steps_, count); }
  Tokens tokens() const;
  int64_t steps() const { return steps_.load(std::memory_order_relaxed); }

 private:
  friend class CallRegistry;
  using Cancel = std::function<void(const absl::Status&)>;
  RunningCall(CallRegistry* registry, Origin origin, Cancel cancel);

  static void Add(std::atomic<int64_t>* counter, int64_t count) {
    counter->fetch_add(count, std::memory_order_relaxed);
  }
  // Of its first time; SteadyTime{}: never.
  SteadyTime BeganAt(CallPhase phase) const;

  CallRegistry* const registry_;
  const Origin origin_;
  const Cancel cancel_;
  std::atomic<CallPhase> phase_{CallPhase::kReading};
  std::array<std::atomic<SteadyTime::rep>, 4> began_{};
  std::atomic<int64_t> prompt_tokens_{0};
  std::atomic<int64_t> cached_tokens_{0};
  std::atomic<int64_t> completion_tokens_{0};
  std::atomic<int64_t> computed_tokens_{0};
  std::atomic<int64_t> max_new_tokens_{0};
  std::atomic<int64_t> steps_{0};
  std::vector<RequestId> engine_requests_;   // under the mutex of the registry
  Subject subject_;                          // under the mutex of the registry
  std::list<RunningCall*>::iterator place_;  // likewise
};

// In whose name calls are looked at.
struct Viewer {
  std::string tenant;
  // Sees the calls of all tenants. As long as nobody is authenticated, everybody does.
  bool is_admin = true;
};

// Whether a call of `tenant` is there at all for the viewer.
bool MaySee(const Viewer& viewer, const std::string& tenant);

// The calls that have not ended. Outlives them. Thread-safe.
class CallRegistry {
 public:
  // `cancel` ends the call as its client would, with the given status; called on any thread, at any
  // time before the registry goes, also when the call has ended.
  std::unique_ptr<RunningCall> Add(RunningCall::Origin origin,
                                   std::function<void(const absl::Status&)> cancel);

  // Calls `visit` for at most `max` of those that the viewer may see, the oldest first, and returns
  // how many these are in all. `visit` must return at once and not call the registry back.
  size_t List(const Viewer& viewer, size_t max,
              const std::function<void(const RunningCall&, const RunningCall::Subject&)>& visit);

  // The id of the call that a request of the engine belongs to; empty: none that runs.
  std::string CallOf(RequestId id);

  // Cancels those with this id, and returns how many these were.
  size_t Cancel(const Viewer& viewer, const std::string& request_id, const absl::Status& status);

 private:
  friend class RunningCall;
  Mutex mu_;
  std::list<RunningCall*> calls_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
