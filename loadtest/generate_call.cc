#include "loadtest/generate_call.h"

#include <chrono>
#include <utility>

#include "client/status.h"

namespace folio::loadtest {

void GenerateCall::Start(v1::Inference::Stub& stub, v1::GenerateRequest request, CallRecord record,
                         const Options& options) {
  request_ = std::move(request);
  record_ = std::move(record);
  record_.sent_seconds = clock_.seconds();
  checker_.emplace(record_.sent_seconds,
                   static_cast<double>(options.heartbeat_interval_ms + options.silence_slack_ms));
  context_.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(
                            std::chrono::duration<double>(options.timeout_seconds)));
  stub.async()->Generate(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
}

void GenerateCall::Cancel() {
  cancelled_.store(true);
  context_.TryCancel();
}

void GenerateCall::OnReadDone(bool ok) {
  if (!ok) return;
  const double now = clock_.seconds();
  checker_->OnEvent(event_, now);
  if (!record_.first_event_seconds) record_.first_event_seconds = now;
  if (event_.has_accepted() && !record_.accepted_seconds) record_.accepted_seconds = now;
  if (event_.has_delta() && !event_.delta().echo() && event_.delta().token_ids_size() > 0) {
    const auto& ids = event_.delta().token_ids();
    record_.token_events.push_back({now, static_cast<uint32_t>(ids.size())});
    record_.token_ids.insert(record_.token_ids.end(), ids.begin(), ids.end());
  }
  if (event_.has_completed()) record_.completed = event_.completed();
  StartRead(&event_);
}

void GenerateCall::OnDone(const grpc::Status& status) {
  record_.end_seconds = clock_.seconds();
  record_.cancelled = cancelled_.load();
  record_.status = client::FromGrpcStatus(status);
  checker_->OnEnd(status.ok(), record_.cancelled, record_.end_seconds);
  record_.max_silence_ms = checker_->max_silence_ms();
  record_.violations = checker_->violations();
  // The owner may delete this call as soon as it knows.
  CallObserver& observer = observer_;
  observer.OnCallDone(call_id_);
}

}  // namespace folio::loadtest
