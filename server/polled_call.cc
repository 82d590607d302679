#include "server/polled_call.h"

#include "server/status_mapping.h"

namespace folio::server {

grpc::ServerUnaryReactor* PolledCall::Start(ServiceContext* context, UnaryCall* call, Poll poll) {
  if (const auto status = poll()) return call->End(*status);
  context->pump.Register(
      std::shared_ptr<PolledCall>(new PolledCall(context, call, std::move(poll))));
  return call;
}

void PolledCall::Tick(SteadyTime) {
  if (call_ == nullptr) return;
  if (const absl::Status wanted = call_->CheckWanted(); !wanted.ok()) {
    return End(ToGrpcStatus(wanted));
  }
  if (const auto status = poll_()) End(*status);
}

void PolledCall::Stop(const absl::Status& status) { End(ToGrpcStatus(status)); }

void PolledCall::End(const grpc::Status& status) {
  if (call_ == nullptr) return;
  call_->End(status);
  call_ = nullptr;
  context_->pump.Unregister(shared_from_this());
}

}  // namespace folio::server
