#include "server/call_registry.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/logging.h"

namespace folio::server {
namespace {

constexpr size_t kMaxIdBytes = 256;
constexpr CallPhase kPhases[] = {CallPhase::kReading, CallPhase::kQueued, CallPhase::kPrefill,
                                 CallPhase::kDecode};

}  // namespace

RunningCall::RunningCall(CallRegistry* registry, Origin origin, Cancel cancel)
    : registry_(registry), origin_(std::move(origin)), cancel_(std::move(cancel)) {
  EnterPhase(CallPhase::kReading, origin_.arrived);
}

RunningCall::~RunningCall() {
  MutexLock lock(&registry_->mu_);
  registry_->calls_.erase(place_);
}

RunningCall::Subject RunningCall::subject() const {
  MutexLock lock(&registry_->mu_);
  return subject_;
}

void RunningCall::SetRequestId(const std::string& id) {
  MutexLock lock(&registry_->mu_);
  subject_.request_id = id;
}

void RunningCall::SetDocumentId(const std::string& id) {
  std::string shown = EscapeLogText(std::string_view(id).substr(0, kMaxIdBytes));
  MutexLock lock(&registry_->mu_);
  subject_.document_id = std::move(shown);
}

void RunningCall::SetStrategy(const std::string& name) {
  MutexLock lock(&registry_->mu_);
  subject_.strategy = name;
}

void RunningCall::AddEngineRequest(RequestId id) {
  MutexLock lock(&registry_->mu_);
  engine_requests_.push_back(id);
}

void RunningCall::EnterPhase(CallPhase phase, SteadyTime now) {
  SteadyTime::rep never = 0;
  began_[static_cast<size_t>(phase)].compare_exchange_strong(never, now.time_since_epoch().count(),
                                                             std::memory_order_relaxed);
  phase_.store(phase, std::memory_order_relaxed);
}

SteadyTime RunningCall::BeganAt(CallPhase phase) const {
  const auto count = began_[static_cast<size_t>(phase)].load(std::memory_order_relaxed);
  return SteadyTime(SteadyTime::duration(count));
}

std::optional<RunningCall::Time> RunningCall::TimeOf(CallPhase phase, SteadyTime now) const {
  const SteadyTime began = BeganAt(phase);
  if (began == SteadyTime{}) return std::nullopt;
  for (const CallPhase later : kPhases) {
    if (later > phase && BeganAt(later) != SteadyTime{}) return Time{began, BeganAt(later)};
  }
  return Time{began, now};
}

double RunningCall::SecondsIn(CallPhase phase, SteadyTime now) const {
  const auto time = TimeOf(phase, now);
  return time.has_value() ? std::chrono::duration<double>(time->end - time->begin).count() : 0;
}

RunningCall::Tokens RunningCall::tokens() const {
  return {prompt_tokens_.load(std::memory_order_relaxed),
          cached_tokens_.load(std::memory_order_relaxed),
          completion_tokens_.load(std::memory_order_relaxed),
          computed_tokens_.load(std::memory_order_relaxed),
          max_new_tokens_.load(std::memory_order_relaxed)};
}

bool MaySee(const Viewer& viewer, const std::string& tenant) {
  return viewer.is_admin || viewer.tenant == tenant;
}

std::unique_ptr<RunningCall> CallRegistry::Add(RunningCall::Origin origin,
                                               std::function<void(const absl::Status&)> cancel) {
  std::list<RunningCall*> place(1);  // before the lock: it may find no memory
  std::unique_ptr<RunningCall> call(new RunningCall(this, std::move(origin), std::move(cancel)));
  place.front() = call.get();
  call->place_ = place.begin();
  MutexLock lock(&mu_);
  calls_.splice(calls_.end(), place);
  return call;
}

size_t CallRegistry::List(
    const Viewer& viewer, size_t max,
    const std::function<void(const RunningCall&, const RunningCall::Subject&)>& visit) {
  MutexLock lock(&mu_);
  size_t count = 0;
  for (const RunningCall* call : calls_) {
    if (!MaySee(viewer, call->origin_.tenant)) continue;
    if (count++ < max) visit(*call, call->subject_);
  }
  return count;
}

std::string CallRegistry::CallOf(RequestId id) {
  MutexLock lock(&mu_);
  for (const RunningCall* call : calls_) {
    const std::vector<RequestId>& ids = call->engine_requests_;
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) return call->subject_.request_id;
  }
  return "";
}

size_t CallRegistry::Cancel(const Viewer& viewer, const std::string& request_id,
                            const absl::Status& status) {
  std::vector<RunningCall::Cancel> cancels;
  {
    MutexLock lock(&mu_);
    for (const RunningCall* call : calls_) {
      if (call->subject_.request_id == request_id && MaySee(viewer, call->origin_.tenant)) {
        cancels.push_back(call->cancel_);
      }
    }
  }
  for (const RunningCall::Cancel& cancel : cancels) cancel(status);  // they may take other locks
  return cancels.size();
}

}  // namespace folio::server
