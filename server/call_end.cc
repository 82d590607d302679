#include "server/call_end.h"

#include "engine/base/catch_errors.h"
#include "server/call_spans.h"
#include "server/logging.h"
#include "server/request_id.h"
#include "server/status_mapping.h"
#include "server/trace_context.h"

namespace folio::server {

CallEnd SendTrailers(const grpc::Status& status, const RunningCall& call,
                     grpc::CallbackServerContext* rpc) noexcept {
  CallEnd end{CodeName(status.error_code()), ""};
  CatchErrors([&] {
    SendRequestId(call.subject().request_id, rpc);
    SendTraceparent(call.origin().trace, rpc);
    end.reason = ReasonOf(status);
  }).IgnoreError();
  SendRetryPushback(status, rpc);
  return end;
}

void KeepRecord(const RunningCall& call, const CallEnd& end, ServiceContext* context) {
  const SteadyTime now = context->clock();
  const RunningCall::Origin& origin = call.origin();
  const RunningCall::Subject subject = call.subject();
  const RunningCall::Tokens tokens = call.tokens();
  const RpcRecord::Work work{tokens.prompt,
                             tokens.cached,
                             tokens.completion,
                             call.SecondsIn(CallPhase::kQueued, now),
                             call.SecondsIn(CallPhase::kPrefill, now),
                             call.SecondsIn(CallPhase::kDecode, now),
                             call.steps(),
                             tokens.computed};
  context->Keep({.method = origin.method,
                 .code = end.code,
                 .reason = end.reason,
                 .request_id = subject.request_id,
                 .tenant = origin.tenant,
                 .identity = origin.identity,
                 .address = origin.client,
                 .document_id = subject.document_id,
                 .strategy = subject.strategy,
                 .trace_id = origin.trace.trace_id,
                 .seconds = std::chrono::duration<double>(now - origin.arrived).count(),
                 .work = work});
  if (context->spans != nullptr && origin.trace.sampled) {
    context->spans->Add(SpansOf(call, end, now));
  }
}

void KeepRefusal(const char* method, const Caller& caller, const grpc::Status& refused,
                 ServiceContext* context) {
  const char* const code = CodeName(refused.error_code());
  context->Keep({.method = method,
                 .code = code,
                 .reason = ReasonOf(refused),
                 .tenant = caller.owner,
                 .identity = caller.identity,
                 .address = caller.address});
}

}  // namespace folio::server
