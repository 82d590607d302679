#pragma once

#include <memory>

#include "engine/runtime/document_info.h"
#include "server/event_pump.h"
#include "server/unary_call.h"

namespace folio::server {

// A call that ends when its document is on disk, or cannot be saved. Owns itself until then.
class SaveCall final : public PumpTarget, public std::enable_shared_from_this<SaveCall> {
 public:
  // `response` gets the document. Returns the call, for gRPC.
  static grpc::ServerUnaryReactor* Start(ServiceContext* context, UnaryCall* call,
                                         const DocumentInfo& document, v1::Document* response);

 private:
  SaveCall(ServiceContext* context, UnaryCall* call, DocumentHandle document,
           v1::Document* response)
      : context_(context), call_(call), document_(std::move(document)), response_(response) {}

  void Handle(Event) override {}
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;
  void End(const grpc::Status& status);

  ServiceContext* const context_;
  UnaryCall* call_;  // null: it has ended
  const DocumentHandle document_;
  v1::Document* const response_;
};

}  // namespace folio::server
