// One request on the wire.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <cstdint>

#include "folio/v1/inference.grpc.pb.h"
#include "loadtest/call_record.h"
#include "loadtest/options.h"
#include "loadtest/stream_checker.h"

namespace folio::loadtest {

// Told when calls end. OnCallDone is called once per call, on a thread of gRPC; afterwards nobody
// but the owner of the call uses it.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void OnCallDone(uint64_t call_id) = 0;
};

// Reads a Generate stream with gRPC's callback API. Owned by the LoadRunner, and must live until
// OnCallDone. Its record is written by gRPC's threads, one callback at a time.
class GenerateCall final : public grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  GenerateCall(uint64_t call_id, const RunClock& clock, CallObserver& observer)
      : call_id_(call_id), clock_(clock), observer_(observer) {}

  // Sends `request` now. `record` holds what is known about the request before.
  void Start(v1::Inference::Stub& stub, v1::GenerateRequest request, CallRecord record,
             const Options& options);
  // Cancels the call unless it has ended. Thread-safe.
  void Cancel();
  // What was measured.  REQUIRES: OnCallDone was called.
  CallRecord TakeRecord() { return std::move(record_); }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  const uint64_t call_id_;
  const RunClock& clock_;
  CallObserver& observer_;
  std::atomic<bool> cancelled_{false};
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateEvent event_;
  CallRecord record_;
  std::optional<StreamChecker> checker_;
};

}  // namespace folio::loadtest
