#include "server/service_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

constexpr std::chrono::milliseconds kHurryPoll{20};
constexpr std::chrono::milliseconds kLoadingRetry{2000};
// A client that comes back finds another replica, or this one restarted.
constexpr std::chrono::milliseconds kDrainingRetry{1000};

}  // namespace

void StreamCount::Add() {
  MutexLock lock(&mu_);
  ++count_;
}

void StreamCount::Remove() {
  MutexLock lock(&mu_);
  if (--count_ == 0) changed_.NotifyAll();
}

bool StreamCount::WaitUntilZero(SteadyTime deadline, const std::function<bool()>& hurry) {
  MutexLock lock(&mu_);
  while (count_ > 0) {
    const SteadyTime now = std::chrono::steady_clock::now();
    if (now >= deadline || hurry()) return false;
    changed_.WaitUntil(&mu_, std::min<SteadyTime>(deadline, now + kHurryPoll));
  }
  return true;
}

ServiceContext::ServiceContext(const ServerOptions& o, Clock c, Metrics* m)
    : options(o), clock(std::move(c)), metrics(m), pump(clock) {}

std::chrono::milliseconds ServiceContext::RetryDelay() const {
  const Engine* engine = this->engine();
  const int waiting = engine == nullptr ? 0 : engine->Stats().waiting;
  return rate.RetryDelay(waiting + num_preparing.load(), clock());
}

grpc::Status ServiceContext::CheckLoaded() const {
  if (engine() != nullptr) return grpc::Status::OK;
  metrics->OnRejected("loading");
  return ToGrpcStatus(absl::UnavailableError("the model is loading"),
                      {"MODEL_LOADING", {}, kLoadingRetry});
}

grpc::Status ServiceContext::CheckServing() const {
  if (!draining_.load()) return CheckLoaded();
  return Refusal(absl::UnavailableError("the server is draining"));
}

grpc::Status ServiceContext::CheckAdmission() const {
  if (grpc::Status serving = CheckServing(); !serving.ok()) return serving;
  const int limit = options.engine.max_queued_requests;
  if (num_preparing.load() < limit) return grpc::Status::OK;
  return Refusal(
      absl::ResourceExhaustedError(absl::StrCat("the queue of ", limit, " requests is full")));
}

grpc::Status ServiceContext::Refusal(const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      metrics->OnRejected("queue");
      return ToGrpcStatus(status, {"QUEUE_FULL", {}, RetryDelay()});
    case absl::StatusCode::kUnavailable:
      metrics->OnRejected("draining");
      return ToGrpcStatus(status, {"DRAINING", {}, kDrainingRetry});
    case absl::StatusCode::kFailedPrecondition:
      metrics->OnRejected("capacity");
      return ToGrpcStatus(status);
    default:
      return ToGrpcStatus(status);
  }
}

}  // namespace folio::server
