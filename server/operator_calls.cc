#include "server/operator_calls.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "server/call_registry.h"
#include "server/request_id.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr uint32_t kDefaultRequests = 100;
constexpr uint32_t kMaxRequests = 1000;

v1::RequestInfo::Phase ToProto(CallPhase phase) {
  switch (phase) {
    case CallPhase::kReading:
      return v1::RequestInfo::PHASE_READING;
    case CallPhase::kQueued:
      return v1::RequestInfo::PHASE_QUEUED;
    case CallPhase::kPrefill:
      return v1::RequestInfo::PHASE_PREFILL;
    case CallPhase::kDecode:
      return v1::RequestInfo::PHASE_DECODE;
  }
  return v1::RequestInfo::PHASE_UNSPECIFIED;
}

void ToProto(const RunningCall& call, const RunningCall::Subject& subject, SteadyTime now,
             v1::RequestInfo* info) {
  info->set_request_id(subject.request_id);
  info->set_method(call.origin().method);
  info->set_tenant(call.origin().tenant);
  info->set_client(call.origin().client);
  info->set_document_id(subject.document_id);
  info->set_strategy(subject.strategy);
  info->set_phase(ToProto(call.phase()));
  info->set_age_seconds(std::chrono::duration<double>(now - call.origin().arrived).count());
  const RunningCall::Tokens tokens = call.tokens();
  info->set_prompt_tokens(static_cast<uint64_t>(tokens.prompt));
  info->set_completion_tokens(static_cast<uint64_t>(tokens.completion));
}

Viewer ViewerOf(const UnaryCall& call) { return {call.caller().owner, call.caller().is_admin}; }

}  // namespace

grpc::ServerUnaryReactor* RunListRequests(ServiceContext* context, UnaryCall* call,
                                          const v1::ListRequestsRequest& request,
                                          v1::ListRequestsResponse* response) {
  const uint32_t asked = request.max_requests();
  if (asked > kMaxRequests) {
    return call->End(
        BadField("max_requests", absl::StrCat("is ", asked, ", the limit is ", kMaxRequests)));
  }
  const SteadyTime now = context->clock();
  const size_t total =
      context->calls.List(ViewerOf(*call), asked == 0 ? kDefaultRequests : asked,
                          [&](const RunningCall& running, const RunningCall::Subject& subject) {
                            ToProto(running, subject, now, response->add_requests());
                          });
  response->set_total(static_cast<uint32_t>(total));
  return call->End(grpc::Status::OK);
}

grpc::ServerUnaryReactor* RunCancelRequest(ServiceContext* context, UnaryCall* call,
                                           const v1::CancelRequestRequest& request,
                                           v1::CancelRequestResponse* response) {
  const std::string& id = request.request_id();
  // Calls whose request is not read yet have none.
  if (id.empty()) return call->End(BadField("request_id", "is empty"));
  call->NoteRequest(id);
  if (const std::string wrong = WhatIsWrongWithRequestId(id); !wrong.empty()) {
    return call->End(BadField("request_id", wrong));
  }
  const size_t cancelled = context->calls.Cancel(
      ViewerOf(*call), id, absl::CancelledError("an operator cancelled the request"));
  if (cancelled == 0) {
    return call->End(ToGrpcStatus(absl::NotFoundError(absl::StrCat("no request ", Quoted(id))),
                                  {"REQUEST_NOT_FOUND", {{"request_id", id}}, {}}));
  }
  response->set_num_cancelled(static_cast<uint32_t>(cancelled));
  return call->End(grpc::Status::OK);
}

}  // namespace folio::server
