#include "server/unary_call.h"

#include <utility>

#include "engine/base/catch_errors.h"
#include "server/begin_call.h"
#include "server/call_end.h"
#include "server/status_mapping.h"

namespace folio::server {

grpc::ServerUnaryReactor* UnaryCall::Start(
    ServiceContext* context, grpc::CallbackServerContext* rpc, const char* method,
    absl::FunctionRef<grpc::ServerUnaryReactor*(UnaryCall*)> answer) {
  return BeginCall<grpc::ServerUnaryReactor>([&]() -> grpc::ServerUnaryReactor* {
    auto* const call = new UnaryCall(context, rpc, method);
    const absl::Status answered = CatchErrors([&] { answer(call); });
    return answered.ok() ? call : call->End(ToGrpcStatus(answered));
  });
}

grpc::ServerUnaryReactor* UnaryCall::End(const grpc::Status& status) {
  code_ = status.error_code();
  CatchErrors([&] {
    SendTraceparent(trace_, rpc_);
    reason_ = ReasonOf(status);
  }).IgnoreError();
  SendRetryPushback(status, rpc_);
  Finish(status);
  return this;
}

grpc::ServerUnaryReactor* UnaryCall::EndOnPool(size_t work_bytes, int64_t memory_bytes, Work work) {
  if (grpc::Status refused = context_->TakeMemory(caller_, memory_bytes, &memory_); !refused.ok()) {
    return End(refused);
  }
  const auto run = [this, work = std::move(work)] {
    const absl::Status wanted = CheckWanted();
    End(wanted.ok() ? work(*this) : ToGrpcStatus(wanted));
  };
  const auto fail = [this](const absl::Status& status) { End(ToGrpcStatus(status)); };
  context_->pool.Post(PromptPool::LaneFor(work_bytes), caller_.tenant->name, {run, fail});
  return this;
}

absl::Status UnaryCall::CheckWanted() const {
  return cancelled_.load() ? absl::CancelledError("the call was cancelled") : absl::OkStatus();
}

void UnaryCall::OnDone() {
  CatchErrors([&] {
    const std::chrono::duration<double> elapsed = context_->clock() - arrived_;
    context_->Keep({.method = method_,
                    .code = CodeName(code_),
                    .reason = reason_,
                    .request_id = request_id_,
                    .tenant = caller_.owner,
                    .identity = caller_.identity,
                    .address = caller_.address,
                    .document_id = document_id_,
                    .trace_id = trace_.trace_id,
                    .seconds = elapsed.count()});
  }).IgnoreError();
  delete this;
}

}  // namespace folio::server
