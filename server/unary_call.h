#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/types/tenant.h"
#include "server/memory_budget.h"
#include "server/service_context.h"

namespace folio::server {

// One unary call: counted and logged when it is done. Owns itself until then.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Makes the call and has `answer` end it, now or on the pool. What that throws ends the call.
  static grpc::ServerUnaryReactor* Start(
      ServiceContext* context, grpc::CallbackServerContext* rpc, const char* method,
      absl::FunctionRef<grpc::ServerUnaryReactor*(UnaryCall* call)> answer);

  // Ends the call, once. Returns it, for gRPC.
  grpc::ServerUnaryReactor* End(const grpc::Status& status);

  // Ends the call with the status of `work`, which runs on the prompt pool and may need
  // `memory_bytes` for a text or list of `work_bytes`. Work of a call that was cancelled meanwhile
  // is not begun. RESOURCE_EXHAUSTED when memory is short. REQUIRES: the model is loaded.
  using Work = std::function<grpc::Status(const UnaryCall& call)>;
  grpc::ServerUnaryReactor* EndOnPool(size_t work_bytes, int64_t memory_bytes, Work work);

  // CANCELLED once the client has cancelled the call or its deadline has passed.
  absl::Status CheckWanted() const;
  // Who asks, once it is known; else why not.
  bool is_authenticated() const { return refusal_.ok(); }
  const grpc::Status& refusal() const { return refusal_; }
  const Caller& caller() const { return caller_; }

  // What the call is about, for the logs.
  void NoteDocument(const std::string& id) { document_id_ = id.substr(0, kMaxNotedBytes); }
  void NoteRequest(const std::string& id) { request_id_ = id.substr(0, kMaxNotedBytes); }

 private:
  static constexpr size_t kMaxNotedBytes = 256;

  UnaryCall(ServiceContext* context, grpc::CallbackServerContext* rpc, const char* method)
      : context_(context),
        rpc_(rpc),
        method_(method),
        arrived_(context->clock()),
        trace_(context->TraceOf(*rpc)),
        refusal_(context->Authenticate(*rpc, &caller_)) {}

  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override;

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;  // valid until OnDone
  const char* const method_;
  const SteadyTime arrived_;
  const TraceContext trace_;
  Caller caller_;
  const grpc::Status refusal_;
  MemoryBudget::Share memory_;
  grpc::StatusCode code_ = grpc::StatusCode::UNKNOWN;
  std::string reason_;
  std::string document_id_;
  std::string request_id_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace folio::server
