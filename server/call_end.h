#pragma once

#include <grpcpp/grpcpp.h>

#include "server/call_registry.h"
#include "server/service_context.h"

// How calls of the registry end: what their clients get beside the status, and what is kept of
// them.
namespace folio::server {

// With which status, as the log says it.
struct CallEnd {
  const char* code = "UNKNOWN";
  std::string reason;
};

// Adds to the trailers of a call that is about to be finished with `status`: its id, its trace and
// when to come back. What there is no memory for is left out.
CallEnd SendTrailers(const grpc::Status& status, const RunningCall& call,
                     grpc::CallbackServerContext* rpc) noexcept;

// Keeps a call that is done (ServiceContext::Keep), and has its spans exported.
void KeepRecord(const RunningCall& call, const CallEnd& end, ServiceContext* context);

// Counts and audits a call that was not let in.
void KeepRefusal(const char* method, const Caller& caller, const grpc::Status& refused,
                 ServiceContext* context);

}  // namespace folio::server
