#include "server/status_mapping.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace folio::server {
namespace {

constexpr int kRetrySeconds = 2;

const char* Reason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case absl::StatusCode::kNotFound: return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists: return "ALREADY_EXISTS";
    case absl::StatusCode::kFailedPrecondition: return "CANNOT_FIT_OR_NOT_READY";
    case absl::StatusCode::kResourceExhausted: return "CAPACITY";
    case absl::StatusCode::kUnavailable: return "NOT_SERVING";
    case absl::StatusCode::kDeadlineExceeded: return "DEADLINE";
    case absl::StatusCode::kCancelled: return "CANCELLED";
    case absl::StatusCode::kAborted: return "ABORTED";
    case absl::StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    default: return "INTERNAL";
  }
}

grpc::Status WithDetails(absl::StatusCode code, const std::string& message,
                         google::rpc::Status details) {
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(Reason(code));
  info.set_domain("folio");
  details.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(code), message, details.SerializeAsString());
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  if (status.code() == absl::StatusCode::kResourceExhausted ||
      status.code() == absl::StatusCode::kUnavailable) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(kRetrySeconds);
    details.add_details()->PackFrom(retry);
  }
  return WithDetails(status.code(), std::string(status.message()), std::move(details));
}

grpc::Status BadField(const std::string& field, const std::string& description) {
  google::rpc::BadRequest bad;
  google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  google::rpc::Status details;
  details.add_details()->PackFrom(bad);
  return WithDetails(absl::StatusCode::kInvalidArgument, field + ": " + description,
                     std::move(details));
}

}  // namespace folio::server
