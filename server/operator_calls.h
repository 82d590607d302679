#pragma once

#include "folio/v1/control.pb.h"
#include "server/unary_call.h"

// Control.ListRequests and CancelRequest: what runs, and an end to it.
namespace folio::server {

grpc::ServerUnaryReactor* RunListRequests(ServiceContext* context, UnaryCall* call,
                                          const v1::ListRequestsRequest& request,
                                          v1::ListRequestsResponse* response);

grpc::ServerUnaryReactor* RunCancelRequest(ServiceContext* context, UnaryCall* call,
                                           const v1::CancelRequestRequest& request,
                                           v1::CancelRequestResponse* response);

}  // namespace folio::server
