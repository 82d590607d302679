#include "client/cli/json_lines.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "client/status.h"

namespace folio::cli {

void WriteJsonLine(std::ostream& out, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(message, &line, options).ok()) {
    WriteErrorLine(out, absl::InternalError("a message of the server cannot be written as JSON"));
    return;
  }
  out << line << std::endl;
}

void WriteErrorLine(std::ostream& out, const absl::Status& status) {
  nlohmann::ordered_json error;
  error["code"] = absl::StatusCodeToString(status.code());
  error["message"] = client::FormatError(status);
  const std::string reason = client::ErrorReason(status);
  if (!reason.empty()) error["reason"] = reason;
  const auto delay = client::RetryDelay(status);
  if (delay.has_value()) error["retry_delay_seconds"] = absl::ToDoubleSeconds(*delay);
  const nlohmann::ordered_json line = {{"error", error}};
  // Text of the server need not be UTF-8.
  out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
}

}  // namespace folio::cli
