#include "server/save_call.h"

#include "server/request_mapping.h"

namespace folio::server {

grpc::ServerUnaryReactor* SaveCall::Start(ServiceContext* context, UnaryCall* call,
                                          const DocumentInfo& document, v1::Document* response) {
  const std::shared_ptr<SaveCall> save(new SaveCall(context, call, document.handle, response));
  const absl::Status ordered = context->engine()->SaveDocument(document.handle);
  if (absl::IsNotFound(ordered)) return call->End(NoDocument(document.handle.id));
  if (!ordered.ok()) return call->End(ToGrpcStatus(ordered));
  context->pump.Register(save);
  return call;
}

void SaveCall::Tick(SteadyTime) {
  if (call_ == nullptr) return;
  if (const absl::Status wanted = call_->CheckWanted(); !wanted.ok()) {
    return End(ToGrpcStatus(wanted));
  }
  const auto document = context_->engine()->GetDocument(document_.id);
  if (!document.has_value() || document->handle != document_) return End(NoDocument(document_.id));
  if (!document->save_error.ok()) return End(context_->Refusal(document->save_error));
  if (!document->saved) return;
  ToProto(*document, response_);
  End(grpc::Status::OK);
}

void SaveCall::Stop(const absl::Status& status) { End(ToGrpcStatus(status)); }

void SaveCall::End(const grpc::Status& status) {
  if (call_ == nullptr) return;
  call_->End(status);
  call_ = nullptr;
  context_->pump.Unregister(shared_from_this());
}

}  // namespace folio::server
