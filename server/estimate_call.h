#pragma once

#include "folio/v1/inference.pb.h"
#include "server/service_context.h"
#include "server/unary_call.h"

namespace folio::server {

// Inference.Estimate: reads and tokenises what Generate would, and queues nothing.
grpc::ServerUnaryReactor* RunEstimate(ServiceContext* context, UnaryCall* call,
                                      const v1::EstimateRequest& request,
                                      v1::EstimateResponse* response);

}  // namespace folio::server
