#include "server/estimate_call.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/generate_request.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

v1::EstimateResponse::Fit FitOf(const Estimate& estimate) {
  switch (estimate.fit) {
    case Estimate::Fit::kNow:
      return v1::EstimateResponse::FIT_NOW;
    case Estimate::Fit::kWhenIdle:
      return v1::EstimateResponse::FIT_WHEN_IDLE;
    case Estimate::Fit::kNever:
      return v1::EstimateResponse::FIT_NEVER;
  }
  return v1::EstimateResponse::FIT_UNSPECIFIED;
}

void Fill(const Estimate& estimate, v1::EstimateResponse* response) {
  *response->mutable_strategy() = ToProto(estimate.attention.strategy);
  *response->mutable_position() = ToProto(estimate.attention.position);
  response->set_adapter(estimate.attention.adapter.name);
  response->set_prompt_tokens(static_cast<uint64_t>(estimate.prompt_tokens));
  response->set_total_tokens(static_cast<uint64_t>(estimate.total_tokens));
  ToProto(estimate.memory, response->mutable_memory());
  ToProto(estimate.document, response->mutable_document_memory());
  response->set_fit(FitOf(estimate));
  response->set_reason(estimate.reason);
  if (estimate.queue_seconds) response->set_queue_seconds(*estimate.queue_seconds);
  if (estimate.first_token_seconds) {
    response->set_time_to_first_token_seconds(*estimate.first_token_seconds);
  }
}

grpc::Status Answer(const ServiceContext& context, const absl::StatusOr<Estimate>& estimate,
                    v1::EstimateResponse* response) {
  if (!estimate.ok()) return context.Refusal(estimate.status());
  Fill(*estimate, response);
  return grpc::Status::OK;
}

grpc::Status EstimateOf(const v1::DocumentEstimate& document, const ServiceContext& context,
                        const TenantPtr& tenant, v1::EstimateResponse* response) {
  const auto most = static_cast<uint64_t>(context.options.engine.max_context_tokens);
  if (document.token_count() == 0 || document.token_count() > most) {
    return BadField("document.token_count",
                    absl::StrCat("is ", document.token_count(), ", must be 1 to ", most));
  }
  AttentionSpec wanted = FromProto(document.strategy(), document.position());
  wanted.adapter.name = document.adapter();
  const auto estimate = context.engine()->EstimateDocument(
      wanted, static_cast<int64_t>(document.token_count()), {tenant});
  if (absl::IsNotFound(estimate.status())) return NoAdapter(estimate.status());
  if (absl::IsInvalidArgument(estimate.status())) {
    return BadFields({BadAttention(estimate.status(), "document.")});
  }
  return Answer(context, estimate, response);
}

}  // namespace

grpc::ServerUnaryReactor* RunEstimate(ServiceContext* context, UnaryCall* call,
                                      const v1::EstimateRequest& request,
                                      v1::EstimateResponse* response) {
  if (request.has_document())
    return call->End(EstimateOf(request.document(), *context, call->caller().tenant, response));
  if (!request.has_request()) {
    return call->End(BadField("subject", "one of request or document must be set"));
  }
  call->NoteDocument(request.request().document().document_id());
  const auto work = [context, &request, response](const UnaryCall& running) {
    GenerateQuestion question;
    const auto interrupt = [&running] { return running.CheckWanted(); };
    grpc::Status read = ReadGenerateRequest(request.request(), *context->engine(), context->options,
                                            running.caller().owner, interrupt, &question);
    const absl::Status wanted = running.CheckWanted();
    if (!wanted.ok()) return ToGrpcStatus(wanted);
    if (!read.ok()) return read;
    question.spec.tenant = running.caller().tenant;
    return Answer(*context, context->engine()->EstimateRequest(std::move(question.spec)), response);
  };
  return call->EndOnPool(request.ByteSizeLong(),
                         MemoryToRead(request.request(), context->engine()->tokenizer()), work);
}

}  // namespace folio::server
