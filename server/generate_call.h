#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "folio/v1/inference.pb.h"
#include "server/event_pump.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Inference.Generate stream. States: tokenising (prompt pool) -> submitted (events come from the pump) ->
// finished. Holds itself until OnDone; every other holder has a shared_ptr.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateEvent>,
                           public PumpTarget,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // Starts the call and returns its reactor. `context` outlives it; `rpc` and `request` are gRPC's.
  static GenerateCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                             const v1::GenerateRequest* request);

  // PumpTarget, on the pump thread.
  void Handle(Event event) override;
  void Tick(SteadyTime now) override;

 private:
  GenerateCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
               const v1::GenerateRequest* request);

  // Reactions, on gRPC threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // On a prompt pool thread.
  void Prepare();
  grpc::Status Tokenise(Engine* engine, GenerateSpec* spec) const;
  grpc::Status Submit(Engine* engine, GenerateSpec spec);

  void Send(v1::GenerateEvent event);
  void SendDelta(const DeltaEvent& delta);
  void FinishWith(const grpc::Status& status);
  void NoteDelta(int num_tokens, SteadyTime now);

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;
  const v1::GenerateRequest* const request_;
  const SteadyTime arrived_ = std::chrono::steady_clock::now();
  const std::string request_id_;
  const std::chrono::milliseconds heartbeat_;
  std::string strategy_;

  WriteQueue<v1::GenerateEvent> writes_;
  std::shared_ptr<GenerateCall> self_;

  // Pump thread, after Accepted was sent by the pool thread.
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<int64_t> last_event_us_{0};
  std::atomic<Phase> phase_{Phase::kQueued};
  SteadyTime last_token_{};

  std::mutex mu_;
  bool cancelled_ = false;    // guarded by mu_
  RequestId request_handle_ = 0;  // guarded by mu_; 0: not submitted
  std::string final_code_ = "OK";  // guarded by mu_
};

}  // namespace folio::server
