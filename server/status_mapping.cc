#include "server/status_mapping.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/catch_errors.h"
#include "engine/base/quoted.h"
#include "engine/base/short_for_now.h"
#include "engine/runtime/shortage.h"
#include "engine/types/document_name.h"
#include "engine/types/request.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace folio::server {
namespace {

constexpr std::chrono::milliseconds kDefaultRetry{1000};

const char* UsualReason(const absl::Status& status) {
  if (status == OutOfMemory()) return "REQUEST_MEMORY";
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return "CAPACITY";
    case absl::StatusCode::kResourceExhausted:
      return "KV_POOL_FULL";
    case absl::StatusCode::kUnavailable:
      return "NOT_SERVING";
    default:
      return CodeName(static_cast<grpc::StatusCode>(status.code()));
  }
}

std::chrono::milliseconds RetryDelay(const absl::Status& status, const ErrorDetail& detail) {
  const bool worth_it = absl::IsUnavailable(status) || IsShortForNow(status);
  return detail.retry_delay.value_or(worth_it ? kDefaultRetry : std::chrono::milliseconds(0));
}

grpc::Status WithDetails(const absl::Status& status, const ErrorDetail& detail,
                         google::rpc::Status details) {
  const std::string message(status.message());
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason.empty() ? UsualReason(status) : detail.reason);
  info.set_domain("folio");
  for (const auto& [key, value] : detail.metadata) (*info.mutable_metadata())[key] = value;
  details.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.SerializeAsString());
}

// Of a bound of the server or of the tenant (kLimitPayload).
void AddQuotaFailure(const absl::Status& status, google::rpc::Status* details) {
  const auto payload = status.GetPayload(kLimitPayload);
  if (!payload.has_value()) return;
  const std::string limit(*payload);
  const bool of_tenant = IsLimitOfTenant(status);
  google::rpc::QuotaFailure failure;
  google::rpc::QuotaFailure::Violation* violation = failure.add_violations();
  violation->set_subject(of_tenant ? "tenant" : "server");
  violation->set_description(of_tenant ? limit.substr(sizeof(kTenantLimit) - 1) : limit);
  details->add_details()->PackFrom(failure);
}

grpc::Status WithEverything(const absl::Status& status, const ErrorDetail& detail) {
  google::rpc::Status details;
  AddQuotaFailure(status, &details);
  const auto delay = RetryDelay(status, detail);
  if (delay.count() > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(delay.count() / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1000 * 1000000));
    details.add_details()->PackFrom(retry);
  }
  return WithDetails(status, detail, std::move(details));
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetail& detail) noexcept {
  if (status.ok()) return grpc::Status::OK;
  grpc::Status mapped(static_cast<grpc::StatusCode>(status.code()), "");
  CatchErrors([&] { mapped = WithEverything(status, detail); }).IgnoreError();
  return mapped;
}

void SendRetryPushback(const grpc::Status& status, grpc::CallbackServerContext* rpc) noexcept {
  CatchErrors([&] {
    google::rpc::Status details;
    if (!details.ParseFromString(status.error_details())) return;
    for (const google::protobuf::Any& detail : details.details()) {
      google::rpc::RetryInfo retry;
      if (!detail.UnpackTo(&retry)) continue;
      const int64_t delay_ms =
          retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1000000;
      rpc->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(delay_ms));
    }
  }).IgnoreError();
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return "";
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

grpc::Status NoDocument(const std::string& id) {
  return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no document ", Quoted(DocumentName(id)))),
                      {"DOCUMENT_NOT_FOUND", {{"document_id", std::string(DocumentName(id))}}, {}});
}

grpc::Status NoAdapter(const absl::Status& status) {
  return ToGrpcStatus(status, {"ADAPTER_NOT_FOUND", {}, {}});
}

grpc::Status DocumentRefusal(const DocumentInfo& document, const absl::Status& status) {
  const bool failed = document.state == DocumentState::kFailed;
  return ToGrpcStatus(status, {failed ? "DOCUMENT_FAILED" : "DOCUMENT_NOT_READY",
                               {{"document_id", std::string(DocumentName(document.handle.id))}},
                               {}});
}

grpc::Status BadFields(const FieldViolations& violations) {
  if (violations.empty()) return grpc::Status::OK;
  google::rpc::BadRequest bad;
  for (const FieldViolation& violation : violations) {
    google::rpc::BadRequest::FieldViolation* out = bad.add_field_violations();
    out->set_field(violation.field);
    out->set_description(violation.description);
  }
  google::rpc::Status details;
  details.add_details()->PackFrom(bad);
  const FieldViolation& first = violations.front();
  std::string message = absl::StrCat(first.field, ": ", first.description);
  if (const size_t more = violations.size() - 1; more > 0) {
    absl::StrAppend(&message, " (and ", more, more == 1 ? " other field" : " other fields", ")");
  }
  return WithDetails(absl::InvalidArgumentError(message), {}, std::move(details));
}

grpc::Status BadField(const std::string& field, const std::string& description) {
  return BadFields({{field, description}});
}

grpc::Status WithPrefix(const std::string& prefix, const grpc::Status& status) {
  const std::string message = absl::StrCat(prefix, status.error_message());
  google::rpc::Status packed;
  if (status.error_details().empty() || !packed.ParseFromString(status.error_details())) {
    return grpc::Status(status.error_code(), message);
  }
  packed.set_message(message);
  return grpc::Status(status.error_code(), message, packed.SerializeAsString());
}

const char* CodeName(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

bool IsFault(std::string_view code_name) {
  return std::find(std::begin(kFaultCodes), std::end(kFaultCodes), code_name) !=
         std::end(kFaultCodes);
}

}  // namespace folio::server
