#include "client/status.h"

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace folio::client {
namespace {

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

// The payload of `status` of this type, if it has one that can be read.
template <typename Detail>
std::optional<Detail> FindDetail(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl<Detail>());
  if (!payload.has_value()) return std::nullopt;
  Detail detail;
  if (!detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

// Server text must not be able to break the line or to steer a terminal.
std::string OneLine(std::string text) {
  for (char& c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status rich;
  if (status.error_details().empty() || !rich.ParseFromString(status.error_details())) {
    return result;
  }
  for (const google::protobuf::Any& detail : rich.details()) {
    if (result.GetPayload(detail.type_url()).has_value()) continue;
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto info = FindDetail<google::rpc::RetryInfo>(status);
  if (!info.has_value() || !info->has_retry_delay()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) +
         absl::Nanoseconds(info->retry_delay().nanos());
}

std::string ErrorReason(const absl::Status& status) {
  const auto info = FindDetail<google::rpc::ErrorInfo>(status);
  return info.has_value() ? info->reason() : std::string();
}

std::string FormatError(const absl::Status& status) {
  if (status.ok()) return "OK";
  const std::string code = absl::StatusCodeToString(status.code());
  std::string text(status.message());
  // Some errors of gRPC itself say no more than their code.
  if (text == code) text.clear();
  const auto bad_request = FindDetail<google::rpc::BadRequest>(status);
  if (bad_request.has_value() && bad_request->field_violations_size() > 0) {
    std::vector<std::string> violations;
    for (const auto& violation : bad_request->field_violations()) {
      violations.push_back(absl::StrCat(violation.field(), ": ", violation.description()));
    }
    text = absl::StrJoin(violations, "; ");
  } else if (const std::string reason = ErrorReason(status); !reason.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "[", reason, "]");
  }
  std::string line = code;
  if (!text.empty()) absl::StrAppend(&line, ": ", text);
  if (const auto delay = RetryDelay(status); delay.has_value()) {
    absl::StrAppendFormat(&line, " (retry in %.3g s)", absl::ToDoubleSeconds(*delay));
  }
  return OneLine(std::move(line));
}

}  // namespace folio::client
