#pragma once

#include <grpcpp/grpcpp.h>

#include "server/begin_call.h"
#include "server/call_end.h"
#include "server/incoming.h"
#include "server/service_context.h"
#include "server/unary_call.h"

// Handlers of methods whose requests may be malformed. They stand in for those that protoc
// generates, which know the plain request types only.
namespace folio::server {

// The place of a method in its service: "folio.v1.Text.Tokenize".
inline int IndexOf(const char* full_name) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(full_name)->index();
}

// `run` is called with requests that are well-formed, once the model is loaded, and ends the call.
template <typename Request, typename Response>
using RunUnary = grpc::ServerUnaryReactor* (*)(ServiceContext*, UnaryCall*, const Request&,
                                               Response*);
template <typename Request, typename Response>
grpc::internal::MethodHandler* UnaryMethod(ServiceContext* context, const char* name,
                                           RunUnary<Request, Response> run) {
  return new grpc::internal::CallbackUnaryHandler<Incoming<Request>, Response>(
      [context, name, run](grpc::CallbackServerContext* rpc, const Incoming<Request>* request,
                           Response* response) {
        return UnaryCall::Start(context, rpc, name, [&](UnaryCall* call) {
          if (!call->is_authenticated()) return call->End(call->refusal());
          if (grpc::Status loaded = context->CheckLoaded(); !loaded.ok()) return call->End(loaded);
          if (grpc::Status bad = request->Read(); !bad.ok()) return call->End(bad);
          return run(context, call, request->message(), response);
        });
      });
}

// One request, a stream of answers.
template <typename Call, typename Request, typename Response>
grpc::internal::MethodHandler* ServerStreamingMethod(ServiceContext* context, const char* name) {
  return new grpc::internal::CallbackServerStreamingHandler<Incoming<Request>, Response>(
      [context, name](grpc::CallbackServerContext* rpc, const Incoming<Request>* request) {
        using Reactor = grpc::ServerWriteReactor<Response>;
        return BeginCall<Reactor>([&]() -> Reactor* {
          Caller caller;
          grpc::Status refused = context->Authenticate(*rpc, &caller);
          if (!refused.ok()) {
            KeepRefusal(name, caller, refused, context);
            return new EndedCall<Reactor>(std::move(refused));
          }
          return Call::Start(context, rpc, std::move(caller), request);
        });
      });
}

// Streams in both directions.
template <typename Call, typename Request, typename Response>
grpc::internal::MethodHandler* BidiMethod(ServiceContext* context, const char* name) {
  return new grpc::internal::CallbackBidiHandler<Incoming<Request>, Response>(
      [context, name](grpc::CallbackServerContext* rpc) {
        using Reactor = grpc::ServerBidiReactor<Incoming<Request>, Response>;
        return BeginCall<Reactor>([&]() -> Reactor* {
          Caller caller;
          grpc::Status refused = context->Authenticate(*rpc, &caller);
          if (!refused.ok()) {
            KeepRefusal(name, caller, refused, context);
            return new EndedCall<Reactor>(std::move(refused));
          }
          return Call::Start(context, rpc, std::move(caller));
        });
      });
}

}  // namespace folio::server
