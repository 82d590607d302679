#include "loadtest/load_runner.h"

#include <algorithm>

namespace folio::loadtest {
namespace {

// Streams of random numbers that must not be equal.
constexpr uint64_t kArrivalSalt = 1;
constexpr uint64_t kProbeArrivalSalt = 2;

}  // namespace

LoadRunner::LoadRunner(const Stubs& stubs, const PromptBuilder& prompts, const Options& options)
    : stubs_(stubs), prompts_(prompts), options_(options), workload_(options) {
  if (options.open_loop()) {
    arrivals_.emplace(*options.rate, options.burstiness, options.seed + kArrivalSalt);
  }
  if (options.probe_rate > 0) {
    probe_arrivals_.emplace(options.probe_rate, 1.0, options.seed + kProbeArrivalSalt);
    next_probe_ = Prepare(workload_.NextProbe());
  }
  next_request_ = Prepare(workload_.Next());
}

std::vector<CallRecord> LoadRunner::Run() {
  while (true) {
    CollectDone();
    FireCancels();
    StartDue();
    if (RequestsAreOver(clock_.seconds()) && in_flight_.empty()) break;
    WaitForWork();
  }
  return std::move(records_);
}

void LoadRunner::OnCallDone(uint64_t call_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_ids_.push_back(call_id);
  call_done_.notify_one();
}

LoadRunner::Prepared LoadRunner::Prepare(RequestSpec spec) const {
  v1::GenerateRequest request = prompts_.BuildRequest(spec, options_);
  return {std::move(spec), std::move(request)};
}

bool LoadRunner::RequestsAreOver(double now) const {
  if (options_.num_requests && num_measured_ >= *options_.num_requests) return true;
  if (!options_.duration_seconds) return false;
  const double due = arrivals_ ? arrivals_->next_seconds() : now;
  return due >= options_.warmup_seconds + *options_.duration_seconds;
}

double LoadRunner::NextRequestSeconds(double now) const {
  if (RequestsAreOver(now)) return kNever;
  if (arrivals_) return arrivals_->next_seconds();
  return num_requests_in_flight_ < options_.concurrency ? now : kNever;
}

double LoadRunner::NextProbeSeconds() const {
  return probe_arrivals_ ? probe_arrivals_->next_seconds() : kNever;
}

void LoadRunner::StartDue() {
  double now = clock_.seconds();
  while (NextRequestSeconds(now) <= now) {
    StartCall(std::move(next_request_), NextRequestSeconds(now));
    if (arrivals_) arrivals_->Advance();
    next_request_ = Prepare(workload_.Next());
    now = clock_.seconds();
  }
  while (NextProbeSeconds() <= now && !RequestsAreOver(now)) {
    StartCall(*std::move(next_probe_), NextProbeSeconds());
    probe_arrivals_->Advance();
    next_probe_ = Prepare(workload_.NextProbe());
  }
}

void LoadRunner::StartCall(Prepared prepared, double scheduled_seconds) {
  CallRecord record;
  record.spec = std::move(prepared.spec);
  record.scheduled_seconds = scheduled_seconds;
  record.warmup = scheduled_seconds < options_.warmup_seconds;
  const bool probe = record.spec.probe;
  if (!probe) {
    ++num_requests_in_flight_;
    if (!record.warmup) ++num_measured_;
  }
  const uint64_t id = next_call_id_++;
  if (record.spec.cancel_delay_seconds) {
    cancels_.emplace(clock_.seconds() + *record.spec.cancel_delay_seconds, id);
  }
  auto call = std::make_unique<GenerateCall>(id, clock_, static_cast<CallObserver&>(*this));
  GenerateCall& started = *call;
  in_flight_.emplace(id, std::move(call));
  started.Start(*stubs_[id % stubs_.size()], std::move(prepared.request), std::move(record),
                options_);
}

void LoadRunner::FireCancels() {
  const double now = clock_.seconds();
  while (!cancels_.empty() && cancels_.top().first <= now) {
    const auto call = in_flight_.find(cancels_.top().second);
    cancels_.pop();
    if (call != in_flight_.end()) call->second->Cancel();
  }
}

void LoadRunner::CollectDone() {
  std::vector<uint64_t> done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done.swap(done_ids_);
  }
  for (const uint64_t id : done) {
    const auto call = in_flight_.find(id);
    records_.push_back(call->second->TakeRecord());
    if (!records_.back().spec.probe) --num_requests_in_flight_;
    in_flight_.erase(call);
  }
}

void LoadRunner::WaitForWork() {
  const double now = clock_.seconds();
  double due =
      std::min(NextRequestSeconds(now), RequestsAreOver(now) ? kNever : NextProbeSeconds());
  if (!cancels_.empty()) due = std::min(due, cancels_.top().first);
  // In a closed loop the end of the duration changes what is due.
  if (!RequestsAreOver(now) && options_.duration_seconds) {
    due = std::min(due, std::max(now, options_.warmup_seconds + *options_.duration_seconds));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_done = [this] { return !done_ids_.empty(); };
  if (due >= kNever) {
    call_done_.wait(lock, has_done);
  } else {
    call_done_.wait_until(lock, clock_.at(due), has_done);
  }
}

}  // namespace folio::loadtest
