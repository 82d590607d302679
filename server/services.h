#pragma once

#include "folio/v1/control.grpc.pb.h"
#include "folio/v1/documents.grpc.pb.h"
#include "folio/v1/inference.grpc.pb.h"
#include "folio/v1/text.grpc.pb.h"
#include "server/service_context.h"

namespace folio::server {

// The gRPC services. They borrow the context and hold nothing else: thread-safe. What a call does
// is described in proto/folio/v1.

class InferenceService final : public v1::Inference::Service {
 public:
  explicit InferenceService(ServiceContext* context);
};

class DocumentsService final : public v1::Documents::Service {
 public:
  explicit DocumentsService(ServiceContext* context);
};

class TextService final : public v1::Text::Service {
 public:
  explicit TextService(ServiceContext* context);
};

class ControlService final : public v1::Control::Service {
 public:
  explicit ControlService(ServiceContext* context);
};

}  // namespace folio::server
