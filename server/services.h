#pragma once

#include "folio/v1/control.grpc.pb.h"
#include "folio/v1/documents.grpc.pb.h"
#include "folio/v1/inference.grpc.pb.h"
#include "folio/v1/text.grpc.pb.h"
#include "server/service_context.h"

namespace folio::server {

// The gRPC services. They borrow the context and hold nothing else: thread-safe. What a call does
// is described in proto/folio/v1.

class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(ServiceContext* context) : context_(context) {}
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) override;
  grpc::ServerBidiReactor<v1::ScoreRequest, v1::ScoreEvent>* Score(
      grpc::CallbackServerContext* rpc) override;

 private:
  ServiceContext* const context_;
};

class DocumentsService final : public v1::Documents::CallbackService {
 public:
  explicit DocumentsService(ServiceContext* context) : context_(context) {}
  grpc::ServerBidiReactor<v1::UploadDocumentRequest, v1::UploadDocumentEvent>* UploadDocument(
      grpc::CallbackServerContext* rpc) override;
  grpc::ServerUnaryReactor* GetDocument(grpc::CallbackServerContext* rpc,
                                        const v1::GetDocumentRequest* request,
                                        v1::Document* response) override;
  grpc::ServerUnaryReactor* ListDocuments(grpc::CallbackServerContext* rpc,
                                          const v1::ListDocumentsRequest* request,
                                          v1::ListDocumentsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteDocument(grpc::CallbackServerContext* rpc,
                                           const v1::DeleteDocumentRequest* request,
                                           v1::DeleteDocumentResponse* response) override;

 private:
  ServiceContext* const context_;
};

class TextService final : public v1::Text::CallbackService {
 public:
  explicit TextService(ServiceContext* context) : context_(context) {}
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* rpc,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* rpc,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  ServiceContext* const context_;
};

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(ServiceContext* context) : context_(context) {}
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* rpc,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* ListStrategies(grpc::CallbackServerContext* rpc,
                                           const v1::ListStrategiesRequest* request,
                                           v1::ListStrategiesResponse* response) override;

 private:
  ServiceContext* const context_;
};

}  // namespace folio::server
