#pragma once

#include "folio/v1/documents.pb.h"
#include "server/service_context.h"
#include "server/unary_call.h"

namespace folio::server {

// How many there are: of an administrator all, of others their own.
size_t NumDocumentsOf(const Engine& engine, const Caller& caller);

// The unary methods of Documents, as methods.h has them: each ends the call, now or later.
grpc::ServerUnaryReactor* RunGetDocument(ServiceContext* context, UnaryCall* call,
                                         const v1::GetDocumentRequest& request,
                                         v1::Document* response);
grpc::ServerUnaryReactor* RunListDocuments(ServiceContext* context, UnaryCall* call,
                                           const v1::ListDocumentsRequest& request,
                                           v1::ListDocumentsResponse* response);
grpc::ServerUnaryReactor* RunDeleteDocument(ServiceContext* context, UnaryCall* call,
                                            const v1::DeleteDocumentRequest& request,
                                            v1::DeleteDocumentResponse* response);
grpc::ServerUnaryReactor* RunSaveDocument(ServiceContext* context, UnaryCall* call,
                                          const v1::SaveDocumentRequest& request,
                                          v1::Document* response);
grpc::ServerUnaryReactor* RunUpdateDocument(ServiceContext* context, UnaryCall* call,
                                            const v1::UpdateDocumentRequest& request,
                                            v1::Document* response);

}  // namespace folio::server
